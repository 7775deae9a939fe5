"""The files in deploy/: nobody is root, data are read-only, health is checked, and every command exists."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from fedframe.cli.app import app

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "fedframe"
UNITS = ("organiser", "node")


def check_command(words: Sequence[str]) -> None:
    """Refuse a command line whose command or options the program does not have."""
    import fedframe.cli  # noqa: F401, which registers all commands

    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    assert not getattr(command, "commands", None), f"{words}: no such command"
    known = {option for parameter in command.params for option in parameter.opts}
    for word in rest:
        assert not word.startswith("--") or word in known, f"{' '.join(words)}: no option {word}"


def test_a_command_that_does_not_exist_is_found_out() -> None:
    check_command(["federation", "serve", "clinic", "--bind", "0.0.0.0"])
    for wrong in (["federation", "server", "clinic"], ["federation", "serve", "clinic", "--listen", "x"]):
        with pytest.raises(AssertionError, match=r"no such command|no option"):
            check_command(wrong)


# -- the image ---------------------------------------------------------------------------------------------------------
def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile, with continued ones joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_runs_as_nobody_in_particular_and_checks_its_health() -> None:
    found = instructions()
    last = [value for name, value in found if name == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last)  # by number: Kubernetes cannot tell that a name is not root
    assert [name for name, _ in found].index("USER") > max(i for i, (name, _) in enumerate(found) if name == "RUN")
    (health,) = [value for name, value in found if name == "HEALTHCHECK"]
    command = re.search(r"fedframe (federation health)", health)
    assert command is not None
    check_command(command[1].split())
    assert not any(name == "ADD" for name, _ in found)
    given = {name for value in (v for n, v in found if n == "ENV") for name in re.findall(r"(\w+)=", value)}
    assert {"FEDFRAME_FOLDER", "OMP_NUM_THREADS", "HOME"} <= given
    root = DEPLOY.parent
    for name, value in found:
        if name == "COPY" and not value.startswith("--from"):
            assert all((root / each).exists() for each in value.split()[:-1])
    extras = re.search(r"\[([\w,]+)\]", next(v for n, v in found if n == "RUN" and "pip" in v))
    assert extras is not None
    assert {"flower", "images"} <= set(extras[1].split(","))
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split("\n")
    assert "*" in ignored


# -- compose -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("role", UNITS)
def test_compose_files_give_no_rights_that_are_not_needed(role: str) -> None:
    given = yaml.safe_load((DEPLOY / f"compose.{role}.yaml").read_text())
    service = given["services"][role]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    check_command(service["command"])
    check_command(service["healthcheck"]["test"][2:])
    assert service["healthcheck"]["test"][:2] == ["CMD", "fedframe"]
    mounts = [each for each in service["volumes"] if isinstance(each, dict)]
    assert [each["target"] for each in mounts if each["read_only"]] == (["/data"] if role == "node" else [])
    assert ("ports" in service) == (role == "organiser")  # a node dials out


def test_commands_in_comments_of_compose_files_exist() -> None:
    for role in UNITS:
        comments = " ".join(
            line.removeprefix("#")
            for line in (DEPLOY / f"compose.{role}.yaml").read_text().splitlines()
            if line[:1] == "#"
        )
        found = re.findall(r"(?:fedframe|node|organiser) (federation (?:(?! then| #|$).)*)", comments.replace("\\", ""))
        assert found
        for text in found:
            check_command(text.partition(" then ")[0].split())


# -- Kubernetes --------------------------------------------------------------------------------------------------------
def rendered(name: str, values: dict[str, Any]) -> dict[str, Any] | None:
    """A template with these values; of Helm's language only what the chart uses: values, quote, if and eq."""

    def value(path: str) -> Any:
        if path == ".Release.Name":
            return "north"
        found: Any = values
        for key in path.removeprefix(".Values.").split("."):
            found = found[key]
        return found

    kept: list[str] = []
    shown = [True]
    for line in (CHART / "templates" / name).read_text().splitlines():
        if begins := re.fullmatch(r"\s*\{\{- if (?:eq (\S+) \"(\w+)\"|(\S+)) \}\}", line):
            holds = value(begins[1]) == begins[2] if begins[1] else bool(value(begins[3]))
            shown.append(shown[-1] and holds)
        elif re.fullmatch(r"\s*\{\{- end \}\}", line):
            shown.pop()
        elif shown[-1]:
            line = re.sub(r"\{\{ (\S+) \| quote \}\}", lambda m: f'"{value(m[1])}"', line)
            kept.append(re.sub(r"\{\{ (\S+) \}\}", lambda m: str(value(m[1])), line))
    assert shown == [True]
    assert "{{" not in "\n".join(kept)
    found: dict[str, Any] | None = yaml.safe_load("\n".join(kept))
    return found


def chart_values(role: str) -> dict[str, Any]:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert isinstance(values, dict)
    create = {"create": "--nodes a,b --host fl.example.org --survey"} if role == "organiser" else {}
    return {**values, "role": role, "organiser": {**values["organiser"], **create}}


def containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec["containers"]
    yield from spec.get("initContainers", ())


@pytest.mark.parametrize("role", UNITS)
def test_the_chart_gives_no_rights_that_are_not_needed(role: str) -> None:
    made = rendered("statefulset.yaml", chart_values(role))
    assert made is not None
    assert made["spec"]["replicas"] == 1
    pod = made["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in containers(pod):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["name"]: mount.get("readOnly", False) for mount in each["volumeMounts"]}
        assert mounts == {"state": False, "tmp": False, **({"kit": True, "data": True} if role == "node" else {})}
    (main,) = pod["containers"]
    check_command(main["args"])
    check_command(main["livenessProbe"]["exec"]["command"][1:])
    names = {each["name"] for each in pod["volumes"]} | {"state"}
    assert names == set(mounts)
    if role == "node":
        assert all(v["persistentVolumeClaim"]["readOnly"] for v in pod["volumes"] if v["name"] == "data")
        assert "--yes" not in main["args"]
        assert rendered("service.yaml", chart_values(role)) is None
    else:
        (script,) = pod["initContainers"][0]["args"]
        check_command(shlex.split(script.partition("exec fedframe ")[2]))
        service = rendered("service.yaml", chart_values(role))
        assert service is not None
        assert service["spec"]["ports"][0]["port"] == main["ports"][0]["containerPort"]
    policy = rendered("networkpolicy.yaml", chart_values(role))
    assert policy is not None
    assert ("ingress" in policy["spec"]) == (role == "organiser")


# -- systemd -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("role", UNITS)
def test_units_give_no_rights_that_are_not_needed(role: str) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / f"fedframe-{role}.service")
    service = unit["Service"]
    assert service["User"] not in ("root", "0")
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["Restart"]) == ("yes", "strict", "always")
    assert service["CapabilityBoundingSet"] == ""
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/fedframe")
    check_command(words)
    assert ("ReadOnlyPaths" in service) == (role == "node")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("role", UNITS)
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path, role: str) -> None:
    text = (DEPLOY / "systemd" / f"fedframe-{role}.service").read_text()
    path = tmp_path / f"fedframe-{role}.service"
    path.write_text(re.sub(r"(?<=ExecStart=)\S+", "/bin/true", text))  # the program is not installed there
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
