"""Real draft/verifier pairs: load them, record their logits, turn logits into probabilities."""

from importlib.util import find_spec

import theory as _theory  # noqa: F401  # first of all, so that an interruption is one line

for _package in ("torch", "transformers"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(
            f"real_models needs {_package}; install it with "
            "pip install -c constraints.txt -e '.[all]'"
        )
