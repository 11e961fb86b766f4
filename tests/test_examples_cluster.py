"""examples/cluster: manifests fit their schemas and our commands, scripts hand on what they get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

from anchor_cli.main import app

CLUSTER = Path(__file__).parents[1] / "examples" / "cluster"
MANIFESTS = ["collectors.yaml", "training.yaml"]
SCRIPTS = ["train.sbatch", "torchrun.sh"]


def documents(name):
    return list(yaml.safe_load_all((CLUSTER / name).read_text(encoding="utf-8")))


def of_kind(name, kind):
    (found,) = [one for one in documents(name) if one["kind"] == kind]
    return found


def pods():
    return [
        of_kind("collectors.yaml", "StatefulSet")["spec"]["template"]["spec"],
        of_kind("training.yaml", "Job")["spec"]["template"]["spec"],
    ]


def tool(name):
    """Where a tool is that was installed with the environment or the machine; else a loud skip."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: this example was not checked")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_fit_the_schemas_of_kubernetes(name):
    checked = subprocess.run(
        [tool("kubernetes-validate"), "--strict", CLUSTER / name],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing_in_the_scripts(name):
    checked = subprocess.run(
        [tool("shellcheck"), "--shell=bash", CLUSTER / name],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_collectors_take_their_arguments_and_probes():
    (container,) = pods()[0]["containers"]
    command, *arguments = container["args"]
    commands = typer.main.get_command(app).commands
    commands[command].make_context(command, arguments)
    for probe in ("readinessProbe", "startupProbe"):
        shell, _, line = container[probe]["exec"]["command"]
        assert shell == "sh"
        assert "livenessProbe" not in container
        program, name, *options = line.replace('"', "").split()
        assert program == "anchor"
        commands[name].make_context(name, options)


def test_collectors_have_names_that_stay_and_certificates_and_stores_are_for_them():
    service, stateful = (of_kind("collectors.yaml", kind) for kind in ("Service", "StatefulSet"))
    assert service["spec"]["clusterIP"] == "None"
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == "anchor"
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"] == labels
    names = [f"anchor-{n}.anchor" for n in range(stateful["spec"]["replicas"])]
    env = {one["name"]: one.get("value") for one in pods()[1]["containers"][0]["env"]}
    assert env["ANCHOR_STORE"] == "grpcs://" + ",".join(f"{name}:50051" for name in names)
    readme = (CLUSTER / "README.md").read_text(encoding="utf-8")
    assert "subjectAltName=" + ",".join(f"DNS:{name}" for name in names) in readme


@pytest.mark.parametrize("number", [0, 1])
def test_pods_are_not_root_and_share_secrets_with_their_group_alone(number):
    pod = pods()[number]
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["fsGroup"] == security["runAsGroup"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    claims = [one["metadata"]["name"] for one in _claims()] if number == 0 else []
    for container in pod["containers"]:
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted <= {*volumes, *claims}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    secrets = [one["secret"] for one in pod["volumes"] if "secret" in one]
    assert [one["defaultMode"] for one in secrets] == [0o440, 0o440]
    if number == 0:
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def _claims():
    return of_kind("collectors.yaml", "StatefulSet")["spec"]["volumeClaimTemplates"]


TOLD = """#!/bin/bash
printf '%s\\n' "$@"
env | grep ^ANCHOR_ | sort
"""


def scripted(folder, script, arguments, stubs, **variables):
    """What a script hands to the programs that it starts, which only say so."""
    for name, text in stubs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ANCHOR_", "SLURM_"))}
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", CLUSTER / script, *arguments], env={**kept, "PATH": path, **variables},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_slurm_names_the_run_by_its_job_and_meets_on_the_first_node(tmp_path):
    stubs = {"srun": TOLD, "scontrol": "#!/bin/bash\nprintf 'node7\\nnode8\\n'\n"}
    slurm = {
        "SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_GPUS_ON_NODE": "8",
    }  # fmt: skip
    store = "grpcs://a:50051,b:50051"
    done = scripted(
        tmp_path, "train.sbatch", ["train.py", "a b"], stubs, ANCHOR_STORE=store, **slurm
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[lines.index("--rdzv-endpoint") + 1] == "node7:29500"
    assert lines[lines.index("--nnodes") + 1] == "2"
    assert lines[lines.index("--nproc-per-node") + 1] == "8"
    assert lines[lines.index("train.py") + 1] == "a b"
    assert {"ANCHOR_RUN=train-42", f"ANCHOR_STORE={store}"} <= set(lines)
    without = scripted(tmp_path, "train.sbatch", ["train.py"], stubs, **slurm)
    assert without.returncode != 0
    assert "set it to the collectors" in without.stderr


def test_torchrun_gets_the_first_host_and_the_run_as_its_meeting(tmp_path):
    stubs, told = {"torchrun": TOLD}, {"ANCHOR_STORE": "grpcs://a:50051", "ANCHOR_RUN": "run1"}
    done = scripted(tmp_path, "torchrun.sh", ["4", "node0", "train.py"], stubs, **told)
    lines = done.stdout.splitlines()
    assert lines[lines.index("--rdzv-endpoint") + 1] == "node0:29500"
    assert lines[lines.index("--rdzv-id") + 1] == "run1"
    assert scripted(tmp_path, "torchrun.sh", ["4"], stubs, **told).returncode == 2
