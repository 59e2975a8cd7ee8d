"""Our kernels by name. Loads the simulator."""

from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    naive_backend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)

BACKENDS: dict[str, CudaBackend] = {
    one.kernel: one for one in (naive_backend, v1_backend, v1_vector_backend, v2_backend)
}
