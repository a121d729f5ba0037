//! Links between documents: the file and the heading that one leads to exist.

/// The relative links of all pages that lead nowhere. `tracked` are the paths of all files.
pub(super) fn broken(pages: &[(&str, String)], tracked: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, text) in pages {
        for (number, line) in prose(text) {
            // A link is what stands in parentheses behind a bracket that closes.
            let links = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
            for link in links.filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
                if let Some(missing) = missing(name, link, pages, tracked) {
                    faults.push(format!("{name}:{number}: {link} leads nowhere: no {missing}"));
                }
            }
        }
    }
    faults
}

fn missing(name: &str, link: &str, pages: &[(&str, String)], tracked: &[&str]) -> Option<String> {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let path = if path.is_empty() { name.to_owned() } else { resolved(name, path) };
    let folder = format!("{path}/");
    if !tracked.iter().any(|file| *file == path || file.starts_with(&folder)) {
        return Some(format!("file {path}"));
    }
    let (_, text) = pages.iter().find(|(page, _)| *page == path)?;
    let heading = heading.filter(|heading| !anchors(text).iter().any(|anchor| anchor == heading))?;
    Some(format!("heading {heading} in {path}"))
}

/// A path as seen from the folder of the page `name`.
fn resolved(name: &str, path: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number + 1, line))
    })
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).map(|(_, line)| line).filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
            let title = heading.trim_start_matches('#').trim().to_lowercase();
            title.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings_that_exist() {
        let page = "# A `b`: c\n\n```\n# none\n[code](x.md)\n```\n\n## `portal_group`, two\n";
        let check = |link: &str| {
            let pages = [("docs/a.md", page.to_owned()), ("docs/d/b.md", format!("see [it]({link})"))];
            broken(&pages, &["docs/a.md", "docs/d/b.md", "docs/d/plot.png", "contrib/x/y.yml"])
        };
        for fine in [
            "../a.md",
            "../a.md#a-b-c",
            "../a.md#portal_group-two",
            "plot.png",
            "../../contrib/x",
            "https://example.com/#x",
        ] {
            assert_eq!(check(fine), [""; 0], "{fine}");
        }
        assert_eq!(check("a.md"), ["docs/d/b.md:1: a.md leads nowhere: no file docs/d/a.md"]);
        assert_eq!(
            check("../a.md#none"),
            ["docs/d/b.md:1: ../a.md#none leads nowhere: no heading none in docs/a.md"]
        );
        assert_eq!(check("#x"), ["docs/d/b.md:1: #x leads nowhere: no heading x in docs/d/b.md"]);
    }
}
