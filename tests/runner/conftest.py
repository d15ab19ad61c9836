"""Without torch only what needs none is collected."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("torch") else ["test_actions.py", "test_layer.py", "test_model.py", "test_profile.py", "test_run_report.py", "test_watch.py"]
)
