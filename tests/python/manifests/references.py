"""Checks that what one object names in another exists: labels, ports, services, metrics, files."""

import re
from pathlib import PurePath

from .files import containers, pod_spec

WORKLOADS = ("Deployment", "StatefulSet")
URL = re.compile(r"^http://(?:[-a-z0-9]+-\d+\.)?([-a-z0-9]+)(?::(\d+))?$")


def check(deployment):
    for workload in deployment.of_kind(*WORKLOADS):
        check_workload(deployment, workload)
    for service in deployment.of_kind("Service"):
        check_service(deployment, service)
    for monitor in deployment.of_kind("PodMonitor"):
        check_monitor(deployment, monitor)
    for scaler in deployment.of_kind("HorizontalPodAutoscaler"):
        check_scaler(deployment, scaler)
    for pool in deployment.of_kind("InferencePool"):
        check_pool(deployment, pool)
    for route in deployment.of_kind("HTTPRoute"):
        for rule in route.content["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                require(deployment, route, backend["kind"], backend["name"])
    for folder in deployment.of_kind("Kustomization"):
        check_kustomization(deployment, folder)
    for document, container in containers(deployment):
        check_addresses(deployment, document, container)


def require(deployment, document, kind, name):
    """The named object; a problem and None if there is none."""
    found = deployment.named(kind, name)
    if found is None:
        deployment.problem(document.file, f"{document.kind} {document.name} names {kind} {name}")
    return found


def labels(workload):
    return workload.content["spec"]["template"]["metadata"]["labels"]


def ports(workload):
    """Names and numbers of all ports of a workload's containers."""
    listed = [port for c in pod_spec(workload)["containers"] for port in c.get("ports", [])]
    return {port.get("name") for port in listed} | {port["containerPort"] for port in listed}


def selected(deployment, document, wanted):
    """The workloads whose pods have these labels; a problem if there are none."""
    found = [w for w in deployment.of_kind(*WORKLOADS) if wanted.items() <= labels(w).items()]
    if not found:
        deployment.problem(document.file, f"{document.kind} {document.name} selects no pods: {wanted}")
    return found


def require_port(deployment, document, workload, port):
    if port not in ports(workload):
        name = f"{workload.kind} {workload.name}"
        deployment.problem(document.file, f"{document.kind} {document.name}: {name} has no port {port}")


def check_workload(deployment, workload):
    spec, pod = workload.content["spec"], pod_spec(workload)
    if not spec["selector"]["matchLabels"].items() <= labels(workload).items():
        deployment.problem(workload.file, f"{workload.name}: the selector and the labels differ")
    if workload.kind == "StatefulSet":
        service = require(deployment, workload, "Service", spec["serviceName"])
        if service and service.content["spec"].get("clusterIP") != "None":
            deployment.problem(workload.file, f"Service {service.name} is not headless")
    if "serviceAccountName" in pod:
        require(deployment, workload, "ServiceAccount", pod["serviceAccountName"])
    volumes = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    for volume in pod.get("volumes", []):
        volumes.add(volume["name"])
        if "configMap" in volume:
            require(deployment, workload, "ConfigMap", volume["configMap"]["name"])
    for container in pod["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                deployment.problem(workload.file, f"{workload.name} has no volume {mount['name']}")
        for probe in ("livenessProbe", "readinessProbe"):
            if probe not in container:
                deployment.problem(workload.file, f"{workload.name} has no {probe}")
                continue
            handler = container[probe].get("httpGet") or container[probe].get("grpc")
            require_port(deployment, workload, workload, handler["port"])
        for argument in container.get("args", []):
            if str(argument).startswith("--pool-name="):
                require(deployment, workload, "InferencePool", argument.split("=")[1])


def check_service(deployment, service):
    for workload in selected(deployment, service, service.content["spec"]["selector"]):
        for port in service.content["spec"]["ports"]:
            require_port(deployment, service, workload, port["targetPort"])


def check_monitor(deployment, monitor):
    spec = monitor.content["spec"]
    for rule in spec["selector"].get("matchExpressions", []):
        for value in rule["values"]:
            wanted = spec["selector"].get("matchLabels", {}) | {rule["key"]: value}
            for workload in selected(deployment, monitor, wanted):
                for endpoint in spec["podMetricsEndpoints"]:
                    require_port(deployment, monitor, workload, endpoint["port"])


def check_scaler(deployment, scaler):
    spec = scaler.content["spec"]
    target = spec["scaleTargetRef"]
    if require(deployment, scaler, target["kind"], target["name"]):
        listed = {
            argument
            for _, container in containers(deployment)
            for argument in container.get("args", [])
            if f".{target['name']}:" in str(argument)
        }
        if len(listed) != spec["maxReplicas"]:
            most = spec["maxReplicas"]
            deployment.problem(scaler.file, f"maxReplicas is {most}, and the router lists {len(listed)}")
    served = {
        rule["name"]["as"]
        for values in deployment.documents
        if values.file.endswith("prometheus-adapter-values.yaml")
        for rule in values.content["rules"]["custom"]
    }
    for metric in spec["metrics"]:
        name = metric["pods"]["metric"]["name"]
        if name not in served:
            deployment.problem(scaler.file, f"no rule of prometheus-adapter makes the metric {name}")


def check_pool(deployment, pool):
    spec = pool.content["spec"]
    for workload in selected(deployment, pool, spec["selector"]["matchLabels"]):
        for port in spec["targetPorts"]:
            require_port(deployment, pool, workload, port["number"])
    picker = spec["endpointPickerRef"]
    service = require(deployment, pool, "Service", picker["name"])
    if service and not serves(service, picker["port"]["number"]):
        deployment.problem(pool.file, f"Service {service.name} has no port {picker['port']['number']}")


def serves(service, number):
    return any(port["port"] == number for port in service.content["spec"]["ports"])


def check_kustomization(deployment, kustomization):
    folder = (deployment.folder / kustomization.file).parent
    listed = set(kustomization.content["resources"])
    for name in listed:
        if not (folder / name).exists():
            deployment.problem(kustomization.file, f"there is no file {name}")
    there = {d.file for d in deployment.of_kind(*kinds(deployment)) if is_in(d, kustomization)}
    for name in {PurePath(file).name for file in there} - listed:
        deployment.problem(kustomization.file, f"{name} is not among the resources")


def kinds(deployment):
    return {document.kind for document in deployment.documents} - {None, "Kustomization"}


def is_in(document, kustomization):
    return PurePath(document.file).parent == PurePath(kustomization.file).parent


def check_addresses(deployment, document, container):
    """Every URL among the arguments must be that of a service, or of a pod behind it."""
    compose = document.content.get("services", {})
    for argument in container.get("args", []):
        url = URL.match(str(argument))
        if not url:
            if str(argument).startswith("http://"):
                deployment.problem(document.file, f"{argument} is no URL of a service")
            continue
        host, port = url.group(1), int(url.group(2) or 80)
        if host in compose:
            continue
        service = deployment.named("Service", host)
        if service is None or not serves(service, port):
            deployment.problem(document.file, f"no service serves {argument}")
