"""The entry point: verbs imported when used, errors as exit statuses and single lines."""

import ast
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest

from debubble.cli import main
from debubble.cli.main import VERBS, command_of
from debubble.core.errors import Fault, InputError, Refusal


def broken(monkeypatch, error: BaseException) -> None:
    """Let ``show`` fail with an error."""

    def fail(*_args, **_more):
        raise error

    monkeypatch.setattr("debubble.verbs.show.simulated", fail)


SHOW = ("show", "1f1b", "-p", 2, "-m", 2)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_table_is_there_and_has_help(cli, verb):
    file, _ = VERBS[verb]
    assert isinstance(getattr(import_module(f"debubble.cli.{file}"), verb), click.Command)
    ran = cli(verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert f"debubble {verb}" in ran.out


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_the_verbs(cli, args):
    ran = cli(*args)
    assert ran.status == 0
    assert all(verb in ran.out for verb in VERBS)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_imports_nothing_heavy(verb):
    code = (
        f"import sys; from debubble.cli.main import main; main({[*verb.split(), '--help']});"
        "print(sorted({'numpy', 'torch', 'numba', 'rich', 'msgspec', 'asyncio'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_the_command_line_imports_whole_files_as_verbs_are_used():
    for path in Path(main.__file__).parent.glob("*.py"):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        inside = [node for function in functions for node in ast.walk(function)]
        assert not [node for node in inside if isinstance(node, ast.Import | ast.ImportFrom)], path


def test_show_imports_neither_torch_nor_numba_nor_rich():
    code = (
        "import sys; from debubble.cli.main import main; main(['show', '1f1b', '-p', '4', '-m', '8']);"
        "print(sorted({'torch', 'numba', 'rich', 'msgspec'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_verb_gets_the_nearest(cli):
    ran = cli("shwo")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == "debubble: verb = 'shwo': no verb has this name; did you mean show?\n"


@pytest.mark.parametrize(
    ("error", "status", "lines"),
    [
        (InputError(Fault("a", "b", "c"), Fault("d", "e", "f")), 2, ["debubble: a: b; c", "debubble: d: e; f"]),
        (Refusal("it does not fit"), 1, ["debubble: it does not fit"]),
        (KeyboardInterrupt(), 130, []),
        (
            FileNotFoundError(2, "No such file or directory", "x.csv"),
            2,
            ["debubble: x.csv: there is no such file or folder; give a path that is there"],
        ),
    ],
    ids=["input", "refusal", "ctrl-c", "file"],
)
def test_errors_become_statuses_and_lines(cli, monkeypatch, error, status, lines):
    broken(monkeypatch, error)
    ran = cli(*SHOW)
    assert (ran.status, ran.out) == (status, "")
    assert [line for line in ran.err.splitlines() if line] == lines


def test_what_a_file_says_cannot_command_the_terminal(cli, monkeypatch):
    broken(monkeypatch, Refusal("cell '\x1b[2J\x07' is none"))
    assert cli(*SHOW).err == "debubble: cell '\\x1b[2J\\x07' is none\n"


def test_an_option_that_does_not_exist_is_one_line(cli):
    ran = cli(*SHOW, "--foo")
    assert ran.status == 2
    assert ran.err.startswith("debubble: No such option")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["plan --foo x", "why a --foo b", "diagnose --foo=3", "show --foo", "fit --foo", "why --foo"]
)
def test_an_option_that_does_not_exist_is_named_where_arguments_would_take_its_name(cli, words):
    ran = cli(*words.split())
    assert ran.status == 2
    assert ran.err.startswith("debubble: No such option: --foo")
    assert ran.err.count("\n") == 1


def test_a_fault_of_ours_is_exit_70_one_line_and_a_report_with_the_traceback(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken(monkeypatch, ZeroDivisionError("a bug"))
    ran = cli(*SHOW)
    assert (ran.status, ran.out) == (70, "")
    (line,) = ran.err.splitlines()
    (report,) = tmp_path.iterdir()
    assert line.startswith("debubble: ZeroDivisionError in verbs/show.py:")
    assert str(report) in line
    text = report.read_text()
    assert "command: debubble show 1f1b -p 2 -m 2" in text
    assert text.rstrip().endswith("ZeroDivisionError: a bug")


def test_a_fault_of_ours_is_json_too_and_no_report_replaces_another(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken(monkeypatch, KeyError("a bug"))
    first, second = (cli(*SHOW, "--json") for _ in range(2))
    assert (first.status, first.json["exit"], first.json["error"]["kind"]) == (70, 70, "internal")
    assert {Path(ran.json["error"]["file"]) for ran in (first, second)} == set(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_report_that_cannot_be_written_leaves_the_line(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    broken(monkeypatch, ZeroDivisionError())
    ran = cli(*SHOW)
    assert ran.status == 70
    assert ran.err.endswith("please send the command line\n")


@pytest.mark.parametrize(
    ("args", "status", "kind", "faults"),
    [
        (("show", "1f2b", "-p", 4, "-m", 8), 2, "input", 1),
        (("show", "1f1b", "-p", 0, "-m", "x"), 2, "input", 2),
        (("show", "1f1b", "-p", 4, "-m", 8, "--foo"), 2, "input", 1),
        (("shwo",), 2, "input", 1),
        (("show",), 2, "input", 1),
    ],
)
def test_an_error_under_json_is_one_object_with_all_faults(cli, args, status, kind, faults):
    ran = cli(*args, "--json")
    assert (ran.status, ran.json["exit"], ran.json["error"]["kind"]) == (status, status, kind)
    assert set(ran.json["error"]) == {"kind", "file", "value", "rule", "remedy"}
    assert len(ran.json["faults"]) == len(ran.err.splitlines()) == faults
    assert ran.json["faults"][0] == {name: ran.json["error"][name] for name in ("value", "rule", "remedy")}
    assert ran.json["schema"] == "error/1"


def test_an_error_names_its_file(cli, tmp_path):
    path = tmp_path / "missing.csv"
    assert cli("show", path, "--json").json["error"]["file"] == str(path)
    (tmp_path / "stuck.csv").write_text("0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n")
    stuck = cli("show", tmp_path / "stuck.csv", "--json")
    assert (stuck.status, stuck.json["error"]["kind"]) == (1, "illegal_schedule")


@pytest.mark.parametrize(
    ("closed", "args", "status", "out", "err"),
    [
        (">&-", "show 1f1b -p 4 -m 8", 0, "", ""),
        ("2>&-", "show 1f1b -p 4 -m 2 --json", 0, "{", ""),
        ("2>&-", "show 1f1b -p 4 -m 0", 2, "", ""),
        (">&-", "show 1f1b -p 4 -m 2", 0, "", "w"),
    ],
)
def test_an_output_that_the_shell_closed_takes_nothing_and_breaks_nothing(closed, args, status, out, err):
    command = f"{sys.executable} -m debubble {args} {closed}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout[:1], ran.stderr[:1]) == (status, out, err)


def shell(command: str) -> subprocess.CompletedProcess[str]:
    line = command.replace("debubble", f"{sys.executable} -m debubble")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("args", ["show 1f1b -p 512 -m 1024 --json", "show --list", "--help", "show gpipe -p 2 -m 2"])
def test_where_nobody_reads_on_it_ends_like_a_tool_that_sigpipe_ends(args):
    ran = shell(f"debubble {args} | true; echo ${{PIPESTATUS[0]}}")
    assert ran.stdout in ("141\n", "0\n")  # 0: it was done before the reader left
    assert "Error" not in ran.stderr


def test_a_reader_that_left_is_never_the_answer_no():
    ran = shell("debubble show 1f1b -p 512 -m 1024 --json | head -c 1; echo ${PIPESTATUS[0]}")
    assert (ran.stdout, ran.stderr) == ("{141\n", "")


@pytest.mark.parametrize("args", ["show 1f1b -p 4 -m 8", "show 1f1b -p 4 -m 8 --json", "show --list"])
def test_a_full_disk_behind_stdout_is_named(args):
    ran = shell(f"debubble {args} > /dev/full")
    assert (ran.returncode, ran.stderr) == (2, "debubble: stdout: No space left on device\n")


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback():
    code = (
        "import sys, debubble.__main__ as it\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(it.entry())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_numpy_starts_no_threads_that_spin():
    code = (
        "import os, sys, debubble.__main__ as it\n"
        "sys.argv = ['debubble', 'show', '1f1b', '-p', '2', '-m', '2', '--json']\n"
        "it.entry(); sys.stderr.write(str(len(os.listdir('/proc/self/task'))))"
    )
    env = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stderr == "1"


def test_the_script_imports_nothing_before_it_looks_after_ctrl_c():
    code = "import sys, debubble.__main__; print(sorted({'click', 'numpy', 'debubble.cli'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    scripts = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"debubble": "debubble.__main__:entry"}


@pytest.mark.parametrize("verb", VERBS)
def test_examples_in_help_stand_line_by_line(cli, verb):
    shown = cli(verb, "--help").out
    assert "\\b" not in shown
    assert all(line.count("debubble ") <= 1 for line in shown.splitlines())


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_that_can_be_typed(verb):
    command = command_of(verb)
    lines = [line.strip() for line in command.help.splitlines()]
    examples = [line for line in lines if line.startswith((f"debubble {verb}", "torchrun "))]
    assert examples
    for example in examples:
        words = shlex.split(example.partition("  #")[0].split(f"debubble {verb}", 1)[1])
        parser = command.make_parser(click.Context(command, info_name=verb, **command.context_settings))
        parser.parse_args(words)  # raises where an option of the example is none
