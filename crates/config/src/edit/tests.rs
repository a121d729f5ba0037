use super::*;
use serde_json::json;

const FILE: &str = "\
# Disks of the lab.
# Ask before you change this.

# The first one.
[[lun]]
name = \"a\"   # short
ram = \"1M\"

# Nobody named this one.
[[lun]]
ram = \"2M\" # two

[[lun]]
name = \"c\"
read_only = true
ram = \"3M\"

[[target]]
name = \"iqn.2026-11.a:x\"
luns = [\"a\", \"lun1\", \"c\"]  # in this order

[[target.group]]
name = \"web\"
luns = [
    # the only one
    \"c\",
]

[target.group.chap]
user = \"u\"
secret = \"0123456789abcdef\" # secret

# The end.
";

fn settings(json: Json) -> Map<String, Json> {
    json.as_object().expect("an object").clone()
}

fn lun(name: &str, action: Action) -> Edit {
    Edit { subject: Subject::Lun(name.into()), action }
}

fn add(json: Json, shown: &[ShownIn]) -> Action {
    Action::Add { settings: settings(json), shown: shown.to_vec() }
}

fn group(action: Action) -> Edit {
    let (target, name) = ("iqn.2026-11.A:X".into(), "web".into());
    Edit { subject: Subject::Group { target, name }, action }
}

fn edited(text: &str, edit: &Edit) -> String {
    edit.apply(text).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The text after these replacements.
fn with(text: &str, replaced: &[(&str, &str)]) -> String {
    replaced.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn a_value_changes_and_nothing_else() {
    let edit = lun("a", Action::Set(settings(json!({ "ram": "4M", "serial": "S", "read_only": true }))));
    let expected = [("ram = \"1M\"", "ram = \"4M\"\nserial = \"S\"\nread_only = true")];
    let once = edited(FILE, &edit);
    assert!(once.contains("name = \"a\"   # short\n") && once.contains("serial = \"S\"\n"), "{once}");
    assert_eq!(once.len(), with(FILE, &expected).len(), "{once}");
    let edit = lun("lun1", Action::Set(settings(json!({ "ram": "8M" }))));
    assert_eq!(edited(FILE, &edit), with(FILE, &[("ram = \"2M\" # two", "ram = \"8M\" # two")]));
    let edit = lun("c", Action::Set(settings(json!({ "read_only": null }))));
    assert_eq!(edited(FILE, &edit), with(FILE, &[("read_only = true\n", "")]));
    let edit = group(Action::Set(settings(json!({ "chap": { "user": "v" } }))));
    assert_eq!(edited(FILE, &edit), with(FILE, &[("user = \"u\"", "user = \"v\"")]));
}

#[test]
fn a_lun_comes_behind_the_others() {
    let edit = lun("d", add(json!({ "ram": "1M" }), &[]));
    let expected = [
        ("ram = \"3M\"\n", "ram = \"3M\"\n\n[[lun]]\nname = \"d\"\nram = \"1M\"\n"),
        ("\"lun1\", \"c\"]", "\"lun1\", \"c\", \"d\"]"),
    ];
    assert_eq!(edited(FILE, &edit), with(FILE, &expected));
    let shown = [
        ShownIn { target: Some("iqn.2026-11.a:x".into()), group: Some("web".into()), number: None },
        ShownIn { number: Some(9), ..ShownIn::default() },
    ];
    let edit = lun("d", add(json!({ "ram": "1M" }), &shown));
    let text = edited(FILE, &edit);
    assert!(text.contains("    # the only one\n    \"c\",\n"), "{text}");
    assert!(text.contains("\"c\", { lun = \"d\", number = 9 }]  # in this order"), "{text}");
    let group = text.split_once("[[target.group]]").expect("it is there").1;
    assert!(group.contains("\"d\""), "{text}");
}

#[test]
fn a_lun_goes_and_the_others_keep_names_numbers_and_comments() {
    let text = edited(FILE, &lun("a", Action::Remove));
    let expected = [
        ("# The first one.\n[[lun]]\nname = \"a\"   # short\nram = \"1M\"\n\n", ""),
        ("ram = \"2M\" # two\n", "ram = \"2M\" # two\nname = \"lun1\"\n"),
        ("[\"a\", \"lun1\", \"c\"]", "[{ lun = \"lun1\", number = 1 }, { lun = \"c\", number = 2 }]"),
    ];
    assert_eq!(text, with(FILE, &expected));
    let text = edited(FILE, &lun("c", Action::Remove));
    assert!(text.contains("luns = [\"a\", \"lun1\"]  # in this order"), "{text}");
    assert!(!text.contains("\"c\""), "{text}");
}

#[test]
fn a_target_that_shows_all_luns_names_them_once_it_must() {
    let text = "lun = [{ ram = \"1M\" }, { ram = \"2M\" }]\n[[target]]\nname = \"iqn.2026-11.a:x\"\n";
    let added = edited(text, &lun("b", add(json!({ "ram": "3M" }), &[])));
    assert!(!added.contains("luns") && added.contains("{ name = \"b\", ram = \"3M\" }"), "{added}");
    let gone = edited(text, &lun("lun0", Action::Remove));
    assert!(gone.contains("luns = [{ lun = \"lun1\", number = 1 }]"), "{gone}");
    assert!(gone.contains("name = \"lun1\""), "{gone}");
    let target = Subject::Target("iqn.2026-11.a:y".into());
    let both = edited(text, &Edit { subject: target, action: add(json!({ "luns": ["lun1"] }), &[]) });
    assert!(both.contains("name = \"iqn.2026-11.a:x\"\nluns = [\"lun0\", \"lun1\"]\n"), "{both}");
    assert!(both.ends_with("[[target]]\nname = \"iqn.2026-11.a:y\"\nluns = [\"lun1\"]\n"), "{both}");
}

#[test]
fn groups_come_and_go() {
    let other = |action| {
        let (target, name) = ("iqn.2026-11.A:X".into(), "Web".into());
        Edit { subject: Subject::Group { target, name }, action }
    };
    let both = edited(FILE, &other(add(json!({ "initiators": ["iqn.y"] }), &[])));
    let gone = edited(&both, &group(Action::Remove));
    assert!(!gone.contains("\"web\"") && gone.contains("\"Web\"") && gone.contains("# The end."), "{gone}");
    let again = edited(&gone, &group(add(json!({ "deny": true, "initiators": ["iqn.x"] }), &[])));
    assert!(
        again.contains("[[target.group]]\nname = \"web\"\ndeny = true\ninitiators = [\"iqn.x\"]\n"),
        "{again}"
    );
    assert!(matches!(group(add(json!({}), &[])).apply(FILE), Err(EditError::Exists(_))));
}

/// Without groups everybody may log in.
#[test]
fn the_last_group_of_a_target_stays() {
    let refused = |edit: &Edit| match edit.apply(FILE) {
        Err(EditError::Wrong(what, _)) => assert!(what.contains("would be open to everyone"), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(&group(Action::Remove));
    for groups in [json!(null), json!([])] {
        let subject = Subject::Target("iqn.2026-11.a:x".into());
        refused(&Edit { subject, action: Action::Set(settings(json!({ "group": groups }))) });
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let missing = lun("x", Action::Remove).apply(FILE).expect_err("there is none");
    let known = ["a", "lun1", "c"].map(String::from).to_vec();
    assert_eq!(missing, EditError::NotFound { what: "LUN x".into(), known });
    assert!(matches!(lun("a", add(json!({}), &[])).apply(FILE), Err(EditError::Exists(_))));
    let renamed = lun("a", Action::Set(settings(json!({ "name": "z" }))));
    assert!(matches!(renamed.apply(FILE), Err(EditError::Wrong(..))));
}

/// Every option of a SPEC, given both ways.
#[test]
fn a_lun_of_the_command_line_is_the_same_in_a_file() {
    let spec = "ram:1M,huge=never,name=a,bs=4K,pbs=8K,ro,serial=S,wcache=off,thin=on,warn_at=80%,removable,iops_max=7,iops_burst=9,\
                bytes_per_second_max=1M,bytes_burst=64K";
    let found = crate::LunSpec::parse(spec).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((found.name.as_deref(), found.number), (Some("a"), None));
    let action = Action::Add { settings: found.settings, shown: Vec::new() };
    let text = edited("[[target]]\nname = \"iqn.2026-11.a:x\"\n", &lun("a", action));
    let file = crate::Config::from_toml(&text, std::path::Path::new("a"))
        .unwrap_or_else(|problems| panic!("{problems}"));
    let options = crate::ServeOptions { lun: vec![spec.into()], ..crate::ServeOptions::default() };
    let line = crate::Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(file.luns, line.luns, "{text}");
}
