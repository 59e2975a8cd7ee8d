"""What a backend is moved. This file says where to."""

raise ImportError(
    "pa_tutorial.backends is now pa_tutorial.attention.backend; "
    "`backend_named` is in pa_tutorial.checks.ladder"
)
