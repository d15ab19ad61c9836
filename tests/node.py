"""The page's scripts in node, without a browser: one process answers a list of questions."""

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

PAGE = Path(str(files("debubble.drawing") / "page"))


def ask(script: str, questions: list) -> list:
    """Evaluate a function body of ``q`` for each question, with the exports of the page's scripts in scope."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = f"""
        const names = ["simulate", "run", "export", "slide", "whatif"];
        for (const name of names) Object.assign(globalThis, require("{PAGE}/" + name));
        const answer = async q => {{ {script} }};
        const text = require("fs").readFileSync(0, "utf8");
        Promise.all(JSON.parse(text).map(answer)).then(all => process.stdout.write(JSON.stringify(all)));
    """
    ran = subprocess.run(["node", "-e", program], input=json.dumps(questions), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
