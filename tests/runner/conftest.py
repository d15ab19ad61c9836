"""Without torch only what needs none is collected."""

from importlib.util import find_spec

_NEED_IT = ("actions", "layer", "model", "profile", "run_report", "watch")
collect_ignore = [] if find_spec("torch") else [f"test_{name}.py" for name in _NEED_IT]
