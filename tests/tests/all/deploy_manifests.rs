//! The manifests under `deploy/` agree with the schemas of what they are given to, with the flags of
//! this binary and with each other; and the check that says so finds mistakes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::harness::{hearth, python_with, workspace};

/// A mistake: in `file`, each `right` becomes `wrong`, and the check must say `problem`.
struct Mistake {
    file: &'static str,
    right: &'static str,
    wrong: &'static str,
    problem: &'static str,
}

/// One row for each schema that is not about a workload, and one about a workload.
const AGAINST_SCHEMAS: [Mistake; 10] = [
    Mistake {
        file: "kubernetes/workers-cpu/workers.yaml",
        right: "readOnlyRootFilesystem: true",
        wrong: "readOnlyRootFilesystem: perhaps",
        problem: "workers-cpu/workers.yaml: StatefulSet at /spec/template/spec/containers/0/securityContext",
    },
    Mistake {
        file: "kubernetes/autoscaling/workers.yaml",
        right: "minReplicas:",
        wrong: "minReplica:",
        problem: "'minReplica' was unexpected",
    },
    Mistake {
        file: "kubernetes/gateway/pool.yaml",
        right: "endpointPickerRef:",
        wrong: "extensionRef:",
        problem: "gateway/pool.yaml: InferencePool at /spec",
    },
    Mistake {
        file: "kubernetes/gateway/route.yaml",
        right: "PathPrefix",
        wrong: "Prefix",
        problem: "'Prefix' is not one of",
    },
    Mistake {
        file: "kubernetes/gateway/endpoint-picker.yaml",
        right: "type: queue-scorer",
        wrong: "type: queue",
        problem: "endpoint-picker.yaml (picker.yaml): EndpointPickerConfig at /plugins/0/type",
    },
    Mistake {
        file: "kubernetes/monitoring/podmonitor.yaml",
        right: "interval: 15s",
        wrong: "interval: 15",
        problem: "15 is not of type 'string'",
    },
    Mistake {
        file: "kubernetes/router/kustomization.yaml",
        right: "newTag:",
        wrong: "tag:",
        problem: "Kustomization at /images/0",
    },
    Mistake {
        file: "kubernetes/autoscaling/prometheus-adapter-values.yaml",
        right: "metricsQuery:",
        wrong: "query:",
        problem: "'query' was unexpected",
    },
    Mistake {
        file: "compose.yaml",
        right: "stop_grace_period: 45s",
        wrong: "stop_grace: 45s",
        problem: "'stop_grace' was unexpected",
    },
    Mistake {
        file: "prometheus.yaml",
        right: "static_configs:",
        wrong: "targets:",
        problem: "prometheus.yaml: the file at /scrape_configs/0",
    },
];

const AGAINST_THE_BINARY_AND_EACH_OTHER: [Mistake; 12] = [
    Mistake {
        file: "kubernetes/router/router.yaml",
        right: "- --policy",
        wrong: "- --routing-policy",
        problem: "`hearth router` has no flag --routing-policy",
    },
    Mistake {
        file: "compose.yaml",
        right: "--model,",
        wrong: "--model-path,",
        problem: "`hearth serve` has no flag --model-path",
    },
    Mistake {
        file: "Dockerfile",
        right: "\"--host\"",
        wrong: "\"--listen\"",
        problem: "`hearth serve` has no flag --listen",
    },
    Mistake {
        file: "kubernetes/disaggregated/decode.yaml",
        right: "HEARTH_DISAGGREGATION_SECRET",
        wrong: "HEARTH_DISAGGREGATION_KEY",
        problem: "HEARTH_DISAGGREGATION_KEY is set, but hearth has no flag",
    },
    Mistake {
        file: "kubernetes/autoscaling/prometheus-adapter-values.yaml",
        right: "vllm:kv_cache_usage_perc",
        wrong: "vllm:gpu_cache_usage_perc",
        problem: "hearth shows no metric vllm:gpu_cache_usage_perc by default",
    },
    Mistake {
        file: "kubernetes/workers-gpu/workers.yaml",
        right: "enableServiceLinks: false",
        wrong: "enableServiceLinks: true",
        problem: "workers-gpu/workers.yaml (hearth): enableServiceLinks must be false",
    },
    Mistake {
        file: "kubernetes/disaggregated/prefill.yaml",
        right: "terminationGracePeriodSeconds: 150",
        wrong: "terminationGracePeriodSeconds: 100",
        problem: "terminationGracePeriodSeconds is 100, and --shutdown-timeout needs 120",
    },
    Mistake {
        file: "kubernetes/autoscaling/workers.yaml",
        right: "hearth_saturation",
        wrong: "hearth_load",
        problem: "no rule of prometheus-adapter makes the metric hearth_load",
    },
    Mistake {
        file: "kubernetes/autoscaling/workers.yaml",
        right: "maxReplicas: 4",
        wrong: "maxReplicas: 8",
        problem: "maxReplicas is 8, and the router lists 4",
    },
    Mistake {
        file: "kubernetes/disaggregated/router.yaml",
        right: "hearth-prefill-0.hearth-prefill:8000",
        wrong: "hearth-prefill-0.hearth-prefill:8080",
        problem: "no service serves http://hearth-prefill-0.hearth-prefill:8080",
    },
    Mistake {
        file: "kubernetes/gateway/pool.yaml",
        right: "component: worker",
        wrong: "component: server",
        problem: "InferencePool hearth selects no pods",
    },
    Mistake {
        file: "kubernetes/workers-cpu/workers.yaml",
        right: "path: /health, port: http",
        wrong: "path: /health, port: web",
        problem: "StatefulSet hearth-worker has no port web",
    },
];

/// A folder for one test, which is empty at first.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the check over a folder `deploy`, with the help texts of the binary under test.
fn check(python: &Path, deploy: &Path, scratch: &Path) -> Output {
    let root = workspace();
    let mut command = Command::new(python);
    command
        .arg(root.join("tests/python/check_manifests.py"))
        .arg(deploy)
        .arg(root.join("docs/METRICS.md"));
    for name in ["serve", "router"] {
        let help = hearth().args([name, "--help"]).output().unwrap();
        assert!(help.status.success(), "hearth {name} --help: {help:?}");
        let file = scratch.join(format!("{name}.txt"));
        fs::write(&file, help.stdout).unwrap();
        command.arg(format!("{name}={}", file.display()));
    }
    command.output().unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn python() -> Option<PathBuf> {
    python_with("import jsonschema, kubernetes_validate, yaml")
}

#[test]
fn the_manifests_agree_with_their_schemas_the_binary_and_each_other() {
    let Some(python) = python() else { return };
    let scratch = scratch("manifests");
    let output = check(&python, &workspace().join("deploy"), &scratch);
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{output:?}");
}

fn every_mistake_is_found(mistakes: &[Mistake], name: &str) {
    let Some(python) = python() else { return };
    let scratch = scratch(name);
    let deploy = scratch.join("deploy");
    copy(&workspace().join("deploy"), &deploy);
    for mistake in mistakes {
        let path = deploy.join(mistake.file);
        let text = fs::read_to_string(&path).unwrap();
        let wrong = text.replace(mistake.right, mistake.wrong);
        assert_ne!(text, wrong, "{} has no {}", mistake.file, mistake.right);
        fs::write(&path, wrong).unwrap();
    }
    let output = check(&python, &deploy, &scratch);
    let report = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{report}\n{output:?}");
    for mistake in mistakes {
        assert!(
            report.contains(mistake.problem),
            "{} became {} in {}, and nothing says: {}\n{report}",
            mistake.right,
            mistake.wrong,
            mistake.file,
            mistake.problem
        );
    }
}

#[test]
fn a_manifest_that_breaks_its_schema_is_found() {
    every_mistake_is_found(&AGAINST_SCHEMAS, "manifests-against-schemas");
}

#[test]
fn a_manifest_that_disagrees_with_the_binary_or_another_is_found() {
    every_mistake_is_found(
        &AGAINST_THE_BINARY_AND_EACH_OTHER,
        "manifests-against-others",
    );
}
