"""Real draft/verifier pairs: load them, record their logits, turn logits into probabilities."""

import os as _os
from importlib.util import find_spec as _find_spec

from sim.jobs.progress import announce as _announce
from theory.terminal.interruption import starting_command as _starting_command

for _package in ("torch", "transformers"):
    if _find_spec(_package) is None:
        raise ModuleNotFoundError(
            f"real_models needs {_package}; install it with "
            "pip install -c constraints.txt -e '.[all]'"
        )

# Threads of OpenMP that spin while they wait for each other bring a forward pass to a halt, six
# times slower and more, as soon as other work wants the cores. It is read once, with PyTorch.
_os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if (_command := _starting_command()) is not None:
    _announce(_command, "loading PyTorch, and then the models or the trace")
