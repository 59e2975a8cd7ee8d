"""Small kernels with known answers, and small kernels with known faults.

Importing this package registers all of them in `example.EXAMPLES` and `example.FAULTS`.
"""

from importlib import import_module
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"{__name__}.{_path.stem}")
