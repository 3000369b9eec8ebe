//! Resolves a user and a group, given as names or numbers, as `docker build` does: in /etc/passwd and /etc/group of the
//! image, without the libraries that it may lack.

use std::fs;

use serde::Deserialize;

#[derive(Deserialize, Clone)]
pub struct Owner {
    pub user: String,
    pub group: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Resolved {
    pub uid: u32,
    pub gid: u32,
    /// Beside `gid`.
    pub groups: Vec<u32>,
    pub home: String,
}

/// Reads files, so it must run on a worker thread. The error is for the author of the Dockerfile.
pub fn resolve(owner: &Owner) -> Result<Resolved, String> {
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    resolve_in(owner, &read("/etc/passwd"), &read("/etc/group"))
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// Without a group, a known user has all its groups, and an unknown number has group 0. A group that is given is the only
/// one.
fn resolve_in(owner: &Owner, passwd: &str, group: &str) -> Result<Resolved, String> {
    let number = parse_id(&owner.user);
    let users = passwd.lines().filter_map(parse_user);
    let known = users.into_iter().find(|user| user.name == owner.user || Some(user.uid) == number);
    let uid = match (&known, number) {
        (Some(user), _) => user.uid,
        (None, Some(uid)) => uid,
        (None, None) => return Err(format!("there is no user {} in /etc/passwd", owner.user)),
    };
    let home = known.as_ref().map_or("/", |user| user.home);
    let home = if home.is_empty() { "/" } else { home }.to_owned();
    if let Some(wanted) = &owner.group {
        let named = group.lines().filter_map(parse_group).find(|(name, _, _)| name == wanted).map(|(_, gid, _)| gid);
        let gid = named.or(parse_id(wanted)).ok_or_else(|| format!("there is no group {wanted} in /etc/group"))?;
        return Ok(Resolved { uid, gid, groups: Vec::new(), home });
    }
    let gid = known.as_ref().map_or(0, |user| user.gid);
    let is_member = |members: &str| known.as_ref().is_some_and(|user| members.split(',').any(|name| name == user.name));
    let member_of = group.lines().filter_map(parse_group).filter(|(_, _, members)| is_member(members));
    let mut groups: Vec<u32> = member_of.map(|(_, gid, _)| gid).filter(|other| *other != gid).collect();
    groups.sort_unstable();
    groups.dedup();
    Ok(Resolved { uid, gid, groups, home })
}

/// The largest number stands for "no change" in system calls, so it is not an id.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX && text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn parse_user(line: &str) -> Option<User<'_>> {
    let mut fields = line.split(':');
    let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let home = fields.nth(1).unwrap_or_default();
    Some(User { name, uid: parse_id(uid)?, gid: parse_id(gid)?, home })
}

/// Name, id and members.
fn parse_group(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
    Some((name, parse_id(gid)?, fields.next().unwrap_or_default().trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\napp:x:1000:1001::/home/app:/bin/sh\nbare:x:7:7::\n";
    const GROUP: &str = "root:x:0:\napps:x:1001:app\nsudo:x:27:other,app\ndocker:x:999:app,other\n";

    fn find(user: &str, group: Option<&str>) -> Result<Resolved, String> {
        resolve_in(&Owner { user: user.into(), group: group.map(str::to_owned) }, PASSWD, GROUP)
    }

    fn resolved(uid: u32, gid: u32, groups: &[u32], home: &str) -> Result<Resolved, String> {
        Ok(Resolved { uid, gid, groups: groups.into(), home: home.into() })
    }

    #[test]
    fn a_known_user_has_all_its_groups_and_its_home() {
        assert_eq!(find("app", None), resolved(1000, 1001, &[27, 999], "/home/app"));
        assert_eq!(find("1000", None), resolved(1000, 1001, &[27, 999], "/home/app"));
        assert_eq!(find("root", None), resolved(0, 0, &[], "/root"));
        assert_eq!(find("bare", None), resolved(7, 7, &[], "/"));
    }

    #[test]
    fn a_given_group_is_the_only_one() {
        assert_eq!(find("app", Some("docker")), resolved(1000, 999, &[], "/home/app"));
        assert_eq!(find("app", Some("4242")), resolved(1000, 4242, &[], "/home/app"));
    }

    #[test]
    fn an_unknown_number_is_a_user_and_an_unknown_name_is_not() {
        assert_eq!(find("4242", None), resolved(4242, 0, &[], "/"));
        assert!(find("nobody-here", None).unwrap_err().contains("nobody-here"));
        assert!(find("app", Some("nogroup")).unwrap_err().contains("nogroup"));
        assert!(find("4294967295", None).is_err());
        assert!(find("+1", None).is_err());
    }
}
