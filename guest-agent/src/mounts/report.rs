//! What the host learns about a mount (`GuestMount` in protocol/src/guest-mounts.ts). Everything has a bounded size: names and
//! texts are those of users.

use serde::Serialize;
use serde_json::Value;

use super::mount::Status;

/// As in the protocol.
const EXAMPLES_MAX: usize = 8;
const PATH_MAX_CHARACTERS: usize = 512;
/// Names and conflicts of one mount, as JSON. The host reads lines of at most 512 KiB, with up to 16 mounts that have an error message
/// each.
const TEXTS_MAX_BYTES: usize = 20 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub id: String,
    pub revision: u64,
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_error: Option<String>,
    /// What the mount program says about itself, as of its last answer, without lists and texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    unsaved: Unsaved,
    conflicts: Vec<Conflict>,
    conflicts_total: u64,
    /// None: not known yet, or the mount is read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    conditional_writes: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Unsaved {
    files: u64,
    bytes: u64,
    names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Conflict {
    path: String,
    kept_as: String,
}

/// The status of a mount program without what the summary has. Hosts expect a list of problems.
pub fn shorten(status: &Value) -> Value {
    let mut short = serde_json::Map::new();
    for name in ["conditions", "read_only", "dirty_files", "dirty_bytes"] {
        if let Some(value) = status.get(name) {
            short.insert(name.to_owned(), value.clone());
        }
    }
    short.insert("problems".to_owned(), Value::Array(Vec::new()));
    Value::Object(short)
}

/// Of the status that the mount program reports (`bucket-mount/src/control.rs`).
pub fn summarise(status: &Value) -> Summary {
    let number = |name: &str| status.get(name).and_then(Value::as_u64).unwrap_or_default();
    let list = |name: &str| status.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(cut);
    let mut conflicts: Vec<Conflict> = list("problems")
        .iter()
        .filter_map(|problem| Some(Conflict { path: text(problem.get("path"))?, kept_as: text(problem.get("kept"))? }))
        .collect();
    let total = number("conflicts_total").max(conflicts.len() as u64);
    // The newest are the last.
    conflicts.drain(..conflicts.len().saturating_sub(EXAMPLES_MAX));
    let mut left = TEXTS_MAX_BYTES;
    let oldest = conflicts.iter().rposition(|conflict| !fits(&mut left, conflict));
    conflicts.drain(..oldest.map_or(0, |index| index + 1));
    let names = list("dirty_names").iter().filter_map(|name| text(Some(name))).take(EXAMPLES_MAX);
    let names = names.take_while(|name| fits(&mut left, name)).collect();
    Summary {
        unsaved: Unsaved { files: number("dirty_files"), bytes: number("dirty_bytes"), names },
        conflicts,
        conflicts_total: total,
        conditional_writes: match status.get("conditions").and_then(Value::as_str) {
            Some("honoured") => Some(true),
            Some("ignored" | "refused") => Some(false),
            _ => None,
        },
    }
}

impl Summary {
    /// Of a mount whose program is gone: it may have said less than what it left behind.
    pub fn with_unsaved(self, (files, bytes): (u64, u64)) -> Self {
        let names = if files == self.unsaved.files { self.unsaved.names } else { Vec::new() };
        Self { unsaved: Unsaved { files, bytes, names }, ..self }
    }
}

/// Takes the length of a value as JSON from what is left, if that is enough.
fn fits(left: &mut usize, value: &impl Serialize) -> bool {
    let length = serde_json::to_vec(value).map_or(usize::MAX, |bytes| bytes.len());
    let rest = left.checked_sub(length);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// The host counts UTF-16 code units.
fn cut(text: &str) -> String {
    if text.encode_utf16().count() <= PATH_MAX_CHARACTERS {
        return text.to_owned();
    }
    let mut units = 0;
    let fits = |character: &char| {
        units += character.len_utf16();
        units < PATH_MAX_CHARACTERS
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_has_bounded_lists_and_texts() {
        let problems: Vec<Value> =
            (0..20).map(|n| json!({"path": n.to_string(), "message": "", "kept": "/k"})).collect();
        let status = json!({
            "conditions": "honoured", "dirty_files": 30, "dirty_bytes": 7, "dirty_names": vec!["🐰".repeat(600); 30],
            "problems": problems, "conflicts_total": 25,
        });

        let summary = summarise(&status);

        assert_eq!((summary.unsaved.files, summary.unsaved.bytes, summary.unsaved.names.len()), (30, 7, 8));
        assert_eq!(summary.unsaved.names.first().map(|name| name.encode_utf16().count()), Some(511));
        assert!(summary.unsaved.names.iter().all(|name| name.ends_with('…')));
        assert_eq!(
            summary.conflicts.iter().map(|conflict| conflict.path.as_str()).collect::<Vec<_>>(),
            ["12", "13", "14", "15", "16", "17", "18", "19"]
        );
        assert_eq!((summary.conflicts_total, summary.conditional_writes), (25, Some(true)));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let summary = summarise(&json!({"dirty_files": 0, "conditions": "unknown"}));

        let expected = json!({"unsaved": {"files": 0, "bytes": 0, "names": []}, "conflicts": [], "conflicts_total": 0});
        assert_eq!(serde_json::to_value(summary).ok(), Some(expected));
    }

    #[test]
    fn reports_of_all_mounts_fit_into_a_line_that_the_host_reads() {
        // Six bytes each, as JSON.
        let text = "\u{1}".repeat(600);
        let problems = vec![json!({"path": text, "message": text, "kept": text}); 32];
        let status = json!({
            "conditions": "honoured", "read_only": false, "dirty_files": 30, "dirty_bytes": u64::MAX, "conflicts_total": 32,
            "dirty_names": vec![text.clone(); 8], "problems": problems,
        });
        let report = Report {
            id: "x".repeat(64),
            revision: u64::MAX,
            status: Status::Failed,
            mount_error: Some("\u{1}".repeat(1000)),
            details: Some(shorten(&status)),
            summary: Some(summarise(&status)),
        };

        let line = json!({"mounts": vec![report; 16]}).to_string();

        assert!(line.len() < 512 * 1024, "{}", line.len());
        let summary = summarise(&status);
        assert!(!summary.conflicts.is_empty() && summary.conflicts_total == 32 && summary.unsaved.files == 30);
    }
}
