use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use hearth_forward::{AdaptedMatrix, TableNumbers, WholeTable};

use super::*;
use crate::error::ApiError;

/// Adapters whose digests are their paths. Those with `table` in their paths have a whole table.
struct Paths;

impl AdapterSource for Paths {
    fn read(&self, path: &str) -> Result<Adapter, AdapterError> {
        match path.strip_prefix("no/") {
            Some(_) => Err(AdapterError::NotFound(format!("{path} is not there"))),
            None => Ok(adapter(path.to_owned())),
        }
    }

    fn combined(&self, parts: &[(Arc<Adapter>, f32)]) -> Result<Adapter, AdapterError> {
        let parts = parts
            .iter()
            .map(|(a, scale)| format!("{scale}*{}", a.digest));
        Ok(adapter(parts.collect::<Vec<_>>().join("+")))
    }
}

fn adapter(digest: String) -> Adapter {
    let table = || WholeTable {
        matrix: AdaptedMatrix::LmHead,
        numbers: TableNumbers::F32,
        bytes: Arc::default(),
    };
    Adapter {
        tables: digest.contains("table").then(table).into_iter().collect(),
        digest,
        ..Adapter::default()
    }
}

fn registered(names: &[(&str, f32)]) -> Adapters {
    let adapters = Adapters::new(Arc::new(Paths), 2, 2, None);
    for (name, scale) in names {
        let given = Registration {
            name: (*name).to_owned(),
            path: format!("path/{name}"),
            scale: *scale,
            ..Registration::default()
        };
        adapters.register(given, "base", false).unwrap();
    }
    adapters
}

fn digest(adapters: &Adapters, wanted: Wanted<'_>) -> Result<String, ApiError> {
    let Choice(choice) = adapters.choose("base", &[], &wanted)?;
    Ok(choice.map_or_else(String::new, |choice| choice.adapter.digest.clone()))
}

fn model(name: &str) -> Wanted<'_> {
    Wanted {
        model: Some(name),
        ..Wanted::default()
    }
}

#[test]
fn an_adapter_with_a_table_applies_to_all_requests_only_alone_and_as_it_is() {
    let adapters = registered(&[("table", 0.0), ("b", 0.0)]);
    for wrong in [
        &[(0, 0.5)][..],
        &[(0, 1.0), (1, 1.0)],
        &[(1, 2.0), (0, -1.0)],
    ] {
        assert_eq!(adapters.set_scales(wrong), Err(ScaleError::NotAlone(0)));
    }
    assert_eq!(digest(&adapters, Wanted::default()).unwrap(), "");
    for (right, want) in [
        (&[(0, 1.0), (1, 0.0)][..], "path/table"),
        (&[(1, 0.5)], "0.5*path/b"),
        (&[(0, 0.0)], ""),
    ] {
        assert_eq!(adapters.set_scales(right), Ok(()));
        assert_eq!(digest(&adapters, Wanted::default()).unwrap(), want);
    }
}

#[test]
fn an_adapter_is_selected_by_the_names_of_every_api() {
    let adapters = registered(&[("a", 0.0), ("b:c", 0.0)]);
    fn digest(adapters: &Adapters, wanted: Wanted<'_>) -> String {
        super::tests::digest(adapters, wanted).unwrap()
    }
    for base in [Wanted::default(), model("base"), model("unknown")] {
        assert_eq!(digest(&adapters, base), "");
    }
    assert_eq!(digest(&adapters, model("a")), "path/a");
    assert_eq!(digest(&adapters, model("base:a")), "path/a");
    assert_eq!(digest(&adapters, model("b:c")), "path/b:c");
    fn path(lora_path: &str) -> Wanted<'_> {
        Wanted {
            lora_path: Some(lora_path),
            ..Wanted::default()
        }
    }
    assert_eq!(
        (digest(&adapters, path("a")), digest(&adapters, path(""))),
        ("path/a".to_owned(), String::new())
    );
    let both = Wanted {
        lora_path: Some("b:c"),
        ..model("base:a")
    };
    assert_eq!(digest(&adapters, both), "path/a");
    let refused = |wanted| adapters.choose("base", &[], &wanted).unwrap_err();
    for name in ["x", "base:x", "base:", "a:base"] {
        assert_eq!(refused(model(name)).status, 404, "{name}");
    }
    let error = refused(path("x"));
    assert_eq!(
        (error.status.as_u16(), error.param.as_deref()),
        (400, Some("lora_path"))
    );
}

#[test]
fn ids_with_factors_add_up_and_the_operator_sets_those_of_all_requests() {
    let adapters = registered(&[("a", 1.0), ("b", 0.0)]);
    fn lora(lora: &[Scaled]) -> Wanted<'_> {
        Wanted {
            lora: Some(lora),
            ..Wanted::default()
        }
    }
    fn scaled(id: usize, scale: f32) -> Scaled {
        Scaled { id, scale }
    }
    fn digest(adapters: &Adapters, wanted: Wanted<'_>) -> String {
        super::tests::digest(adapters, wanted).unwrap()
    }
    assert_eq!(digest(&adapters, Wanted::default()), "path/a");
    assert_eq!(
        digest(&adapters, lora(&[])),
        "",
        "a list without an adapter is the base model"
    );
    assert_eq!(
        digest(&adapters, lora(&[scaled(1, 0.5), scaled(0, 2.0)])),
        "0.5*path/b+2*path/a"
    );
    assert_eq!(
        digest(&adapters, lora(&[scaled(1, 1.0), scaled(0, 0.0)])),
        "path/b"
    );
    adapters.set_scales(&[(1, 0.25)]).unwrap();
    assert_eq!(digest(&adapters, Wanted::default()), "0.25*path/b");
    assert_eq!(
        digest(&adapters, model("a")),
        "path/a",
        "a named adapter has its own factor"
    );
    assert_eq!(
        adapters.set_scales(&[(7, 1.0)]),
        Err(ScaleError::Unknown(7))
    );
    for wrong in [vec![scaled(2, 1.0)], vec![scaled(0, 1.0), scaled(0, 1.0)]] {
        let error = adapters.choose("base", &[], &lora(&wrong)).unwrap_err();
        assert!(error.param.unwrap().starts_with("lora["));
    }
    let error = adapters.choose(
        "base",
        &[],
        &Wanted {
            model: Some("a"),
            ..lora(&[])
        },
    );
    assert_eq!(error.unwrap_err().param.as_deref(), Some("lora"));
}

#[test]
fn names_are_unique_and_an_adapter_that_is_used_outlives_its_name() {
    let adapters = registered(&[("a", 0.0)]);
    let again = |name: &str, path: &str, replace| {
        let given = Registration {
            name: name.to_owned(),
            path: path.to_owned(),
            ..Registration::default()
        };
        adapters.register(given, "base", replace)
    };
    for name in ["a", "base", "", "x,y", "x\ny"] {
        assert!(
            matches!(again(name, "p", false), Err(AdapterError::Name(_))),
            "{name:?}"
        );
    }
    assert!(matches!(
        again("x", "no/x", false),
        Err(AdapterError::NotFound(_))
    ));
    let Choice(before) = adapters.choose("base", &[], &model("a")).unwrap();
    let mut running = before.as_ref().unwrap().begin();
    again("a", "new", true).unwrap();
    assert_eq!(before.unwrap().adapter.digest, "path/a");
    assert_eq!(digest(&adapters, model("a")).unwrap(), "new");
    let names = |list: &[&str]| {
        list.iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(adapters.in_use(), [names(&[]), names(&["a"])]);
    running.set_running(true);
    assert_eq!(adapters.in_use(), [names(&["a"]), names(&[])]);
    let removed = adapters.unregister("a").unwrap();
    assert!(removed.is_in_use() && adapters.unregister("a").is_none());
    drop(running);
    assert!(!removed.is_in_use());
    assert_eq!(
        adapters
            .choose("base", &[], &model("a"))
            .unwrap_err()
            .status,
        404
    );
}

#[test]
fn no_more_adapters_than_fit_are_in_memory_and_the_others_are_read_again() {
    let adapters = registered(&[("a", 0.0), ("b", 0.0), ("c", 0.0)]);
    let in_memory = || {
        let state = adapters.state();
        let list = state.list.iter().filter(|there| there.adapter.is_some());
        list.map(|there| there.as_given.name.clone())
            .collect::<String>()
    };
    assert_eq!(in_memory(), "bc");
    assert_eq!(digest(&adapters, model("a")).unwrap(), "path/a");
    assert_eq!(in_memory(), "ac");
}

/// Reads of `old` after the first one wait until they are let go.
struct Slow {
    reads: AtomicUsize,
    began: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl AdapterSource for Slow {
    fn read(&self, path: &str) -> Result<Adapter, AdapterError> {
        if path == "old" && self.reads.fetch_add(1, Ordering::SeqCst) > 0 {
            self.began.lock().unwrap().send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        Ok(adapter(path.to_owned()))
    }

    fn combined(&self, _: &[(Arc<Adapter>, f32)]) -> Result<Adapter, AdapterError> {
        Err(AdapterError::Refused("no sums".to_owned()))
    }
}

#[test]
fn an_adapter_that_is_replaced_while_it_is_read_again_is_the_new_one() {
    let ((began, has_begun), (let_go, go)) = (channel(), channel());
    let source = Slow {
        reads: AtomicUsize::new(0),
        began: Mutex::new(began),
        go: Mutex::new(go),
    };
    let adapters = Adapters::new(Arc::new(source), 1, 1, None);
    let register = |name: &str, path: &str| {
        let given = Registration {
            name: name.to_owned(),
            path: path.to_owned(),
            ..Registration::default()
        };
        adapters.register(given, "base", true).unwrap();
    };
    register("a", "old");
    // There is room for one, so that the first is forgotten.
    register("b", "b");
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| digest(&adapters, model("a")).unwrap());
        has_begun.recv().unwrap();
        register("a", "new");
        // It is forgotten again.
        assert_eq!(digest(&adapters, model("b")).unwrap(), "b");
        let_go.send(()).unwrap();
        assert_eq!(reading.join().unwrap(), "new");
    });
    assert_eq!(digest(&adapters, model("a")).unwrap(), "new");
}

#[test]
fn a_path_of_a_request_stays_below_the_directory() {
    let root = std::env::temp_dir().join(format!("hearth-lora-dir-{}", std::process::id()));
    let inside = root.join("dir/adapter");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::create_dir_all(root.join("secret")).unwrap();
    let dir = LoraDir::new(&root.join("dir")).unwrap();
    let want = inside.canonicalize().unwrap().display().to_string();
    assert_eq!(dir.resolve("adapter").unwrap(), want);
    assert_eq!(dir.resolve(&want).unwrap(), want);
    let secret = root.join("secret").display().to_string();
    for outside in [
        "../secret",
        "adapter/../../secret",
        "/etc",
        &secret,
        "",
        ".",
        "a\0b",
    ] {
        let error = dir.resolve(outside).unwrap_err();
        assert!(
            matches!(error, AdapterError::Refused(_)),
            "{outside}: {error}"
        );
    }
    assert!(matches!(
        dir.resolve("none"),
        Err(AdapterError::NotFound(_))
    ));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(root.join("secret"), root.join("dir/link")).unwrap();
        assert!(matches!(dir.resolve("link"), Err(AdapterError::Refused(_))));
    }
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn what_telemetry_calls_adapters_is_bounded() {
    let one = AdapterLabels::of(&["a"]);
    assert_eq!((&*one.traces, &*one.metrics), ("a", "a"));
    let two = AdapterLabels::of(&["a", "b"]);
    assert_eq!((&*two.traces, &*two.metrics), ("a+b", "_SEVERAL"));
    // 129 characters of two bytes, the last of which would end beyond the bound.
    let long = AdapterLabels::of(&["a", &"ä".repeat(127), "b"]);
    assert_eq!(long.traces, format!("a+{}", "ä".repeat(127)));
    assert_eq!(long.traces.len(), MAX_NAME);
}
