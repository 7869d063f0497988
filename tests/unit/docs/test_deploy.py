"""The files in deploy/ are whole: they parse, name what exists, and agree with one another and with the docs."""

import configparser
import json
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from penstock.node.config import Config, load_config
from tests.support.docs import DOCS, ROOT

DEPLOY = ROOT / "deploy"
FIELDS = {field.upper() for field in Config.__struct_fields__}


def documents(path: str) -> list[Any]:
    return [each for each in yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")) if each]


def unit(path: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string((DEPLOY / path).read_text(encoding="utf-8"))
    return read


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def test_a_node_has_time_to_drain_wherever_it_runs() -> None:
    needed_s = Config().drain_s + 10
    assert int(unit("systemd/penstock.service")["Service"]["TimeoutStopSec"]) >= needed_s
    [deployment] = [each for each in documents("kubernetes/penstock.yaml") if each["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= needed_s
    [compose] = documents("docker/compose.yaml")
    assert all(seconds(compose["services"][node]["stop_grace_period"]) >= needed_s for node in ("node1", "node2"))


def test_systemd_waits_for_the_node_and_watches_it() -> None:
    service = unit("systemd/penstock.service")["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) >= 10
    assert service["KillMode"] == "mixed", "an embedded server is in the node's group, and must outlive its last work"


def test_a_node_may_write_its_data_and_its_memory_of_the_server_wherever_it_runs() -> None:
    data = "/var/lib/penstock"
    state = str(Config(data=data).memory_file().parent)
    folders = unit("systemd/penstock.service")["Service"]["StateDirectory"].split()
    assert [f"/var/lib/{folder}" for folder in folders] == [data, state]
    image = (DEPLOY / "docker/Dockerfile").read_text(encoding="utf-8")
    assert f"VOLUME {data} {state}\n" in image
    assert f"install --directory --owner penstock --mode 700 {state}\n" in image
    [deployment] = [each for each in documents("kubernetes/penstock.yaml") if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert {data, state} <= writable


def test_compose_names_variables_that_nodes_and_servers_read() -> None:
    [compose] = documents("docker/compose.yaml")
    services = compose["services"]
    read = set(re.findall(r"\$(PENSTOCK_\w+)", (ROOT / "nats/cluster/server.conf").read_text(encoding="utf-8")))
    for server in ("n1", "n2", "n3"):
        assert set(services[server]["environment"]) == read
        assert f"nats://{server}:6222" in services[server]["environment"]["PENSTOCK_ROUTES"]
    for node in ("init", "node1", "node2"):
        assert {name.removeprefix("PENSTOCK_") for name in services[node]["environment"]} <= FIELDS


def test_kubernetes_runs_nodes_without_rights_on_a_configuration_that_is_read(tmp_path: Path) -> None:
    kinds = {each["kind"]: each for each in documents("kubernetes/penstock.yaml")}
    file = tmp_path / "node.toml"
    file.write_text(kinds["ConfigMap"]["data"]["node.toml"], encoding="utf-8")
    config = load_config(file, {}, {})
    assert (config.replicas, config.profile) == (3, "safe")
    assert config.sink.removeprefix("env:") in kinds["Secret"]["stringData"]
    for kind in ("Job", "Deployment"):
        spec = kinds[kind]["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["enableServiceLinks"] is False, "PENSTOCK_PORT of a service called penstock is no port of a server"
        [container] = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in spec["volumes"]}


def test_each_alert_is_about_a_figure_of_the_docs_and_says_what_to_do() -> None:
    told = set(re.findall(r"`(?:absent\()?(penstock_\w+)", (DOCS / "operations.md").read_text(encoding="utf-8")))
    [rules] = documents("prometheus/alerts.yaml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        names = set(re.findall(r"\bpenstock_\w+", rule["expr"]))
        assert names, rule["alert"]
        assert {name.removesuffix("_bucket") for name in names} <= told, rule["alert"]
        assert rule["annotations"]["what_to_do"], rule["alert"]


def test_the_docs_list_each_figure_and_the_dashboard_shows_none_that_is_unknown() -> None:
    source = (ROOT / "actors/runtime/measures.py").read_text(encoding="utf-8")
    made = set(re.findall(r'"(penstock_\w+)"', source))
    assert len(made) > 25
    told = set(re.findall(r"`(penstock_\w+)", (DOCS / "operations.md").read_text(encoding="utf-8")))
    assert {name if name in told else f"{name}_total" for name in made} <= told
    dashboard = json.loads((DEPLOY / "grafana/penstock.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name.removesuffix("_bucket") for expr in asked for name in re.findall(r"\bpenstock_\w+", expr)}
    assert shown <= told
    single = re.findall(r'"(penstock_\w+)", "', source[source.index("_WAITING") :])
    moved = [expr for expr in asked for name in re.findall(r"\bpenstock_\w+", expr) if name in single]
    assert moved
    assert all("max by" in expr for expr in moved), "the node that has them changes"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_image_has_the_locked_packages_and_no_rights() -> None:
    lines = (DEPLOY / "docker/Dockerfile").read_text(encoding="utf-8").splitlines()
    assert any("--require-hashes -r /build/requirements.lock" in line for line in lines)
    assert "USER 10001" in lines


@pytest.mark.skipif(not which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_knows_each_line_of_the_units() -> None:
    units = [str(path) for path in sorted((DEPLOY / "systemd").glob("*.service"))]
    told = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False).stderr
    assert not [line for line in told.splitlines() if "deploy/systemd" in line and "not executable" not in line]


@pytest.mark.skipif(not which("promtool"), reason="promtool is not here")
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    folder = DEPLOY / "prometheus"
    told = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.skipif(not which("promtool"), reason="promtool is not here")
def test_prometheus_understands_what_the_dashboard_asks(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana/penstock.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"asked_{at}", "expr": expr} for at, expr in enumerate(asked)]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    told = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.skipif(not which("kubectl"), reason="kubectl is not here")
def test_kubectl_reads_each_manifest(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text((DEPLOY / "kubernetes/penstock.yaml").read_text(encoding="utf-8"))
    (tmp_path / "kustomization.yaml").write_text("namePrefix: shop-\nresources: [penstock.yaml]\n")
    told = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    made = list(yaml.safe_load_all(told.stdout))
    assert len(made) == len(documents("kubernetes/penstock.yaml"))
    [deployment] = [each for each in made if each["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    names = {each.get("configMap", {}).get("name") for each in spec["volumes"]} - {None}
    assert names == {"shop-penstock"}, "what refers to another manifest is renamed with it"
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "shop-penstock"}}]
