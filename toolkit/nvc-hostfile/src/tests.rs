#![allow(clippy::unwrap_used)]

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use libnvc::xattr;

use super::*;

/// A user that is neither root nor the caller.
const OTHER: u32 = 4242;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn edit(path: &Path, text: &str) -> Result<()> {
    HostFile::open(path)?.replace(text, 0o644)
}

#[test]
fn a_link_to_an_edited_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("real")).unwrap();
    fs::write(at("real/file"), "old").unwrap();
    mode(&at("real/file"), 0o640);
    symlink("real", at("directory")).unwrap();
    symlink("../directory/file", at("real/link")).unwrap();
    for link in ["real/link", "directory/link", "real/../real/./link"] {
        edit(&at(link), link).unwrap();
        assert_eq!(fs::read_to_string(at("real/file")).unwrap(), link);
    }
    assert!(at("real/link").is_symlink());
    assert_eq!(at("real/file").metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_dir(at("real")).unwrap().count(), 2);

    edit(&at("new/directory/file"), "new").unwrap();
    assert_eq!(fs::read_to_string(at("new/directory/file")).unwrap(), "new");
    HostFile::open(&at("new/directory/file"))
        .unwrap()
        .remove()
        .unwrap();
    assert!(!at("new/directory/file").exists());
}

#[test]
fn what_is_not_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    symlink("loop", at("loop")).unwrap();
    fs::write(at("file"), "").unwrap();
    for path in ["loop", "loop/x", "file/x", ".", "..", "missing/../file"] {
        assert!(edit(&at(path), "x").is_err(), "{path}");
        assert!(
            create(&at(path), b"x", 0o644).is_err() || path == "loop",
            "{path}"
        );
    }
    let error = edit(Path::new("/dev/null"), "x").unwrap_err();
    assert_eq!(error.message(), "/dev/null: it is not a regular file");
    fs::write(at("binary"), b"\xff").unwrap();
    assert!(HostFile::open(&at("binary")).is_err());
}

/// Parsing takes many times a file's size of memory, and root's commands read files of users.
#[test]
#[ignore = "requires root"]
fn a_file_of_another_user_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for (owner, size, is_read) in [(0, 65537, true), (4242, 65536, true), (4242, 65537, false)] {
        fs::write(&path, "x".repeat(size)).unwrap();
        chown(&path, Some(owner), None).unwrap();
        let found = HostFile::open(&path);
        assert_eq!(found.is_ok(), is_read, "{owner} {size}");
        if let Err(error) = found {
            assert!(
                error
                    .message()
                    .ends_with("it is another user's, and larger than 64 KiB")
            );
        }
    }
}

/// The text of such a link names a file of another root.
#[test]
fn a_link_of_another_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "old").unwrap();
    let directory = File::open(dir.path()).unwrap();
    for way in [
        format!("/proc/self/root{}", file.display()),
        format!("/proc/{}/root{}", std::process::id(), file.display()),
        format!("/proc/thread-self/fd/{}/file", directory.as_raw_fd()),
    ] {
        let way = Path::new(&way);
        for error in [edit(way, "x"), create(way, b"x", 0o644)] {
            let text = error.unwrap_err().message();
            assert!(text.ends_with("is a link of another process"), "{text}");
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}

#[test]
fn a_file_that_was_exchanged_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("file"), dir.path().join("other"));
    let refused = |opened: HostFile| {
        let removal = opened.remove().unwrap_err().message();
        let replacement = opened.replace("new", 0o644).unwrap_err().message();
        let text = format!("{}: it was replaced after it had been read", file.display());
        assert_eq!([&*removal, &*replacement], [&*text, &*text]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    };
    fs::write(&other, "other").unwrap();
    let opened = HostFile::open(&file).unwrap();
    fs::write(&file, "appeared").unwrap();
    refused(opened);
    let opened = HostFile::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    symlink("other", &file).unwrap();
    refused(opened);
    assert_eq!(fs::read_to_string(&other).unwrap(), "other");
}

#[test]
#[ignore = "needs root"]
fn files_in_anothers_directory_are_not_edited() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in [
        "user",
        "world",
        "group",
        "sticky",
        "sticky/ours",
        "user/ours",
    ] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("file"), "old").unwrap();
    }
    chown(at("user"), Some(OTHER), None).unwrap();
    mode(&at("world"), 0o777);
    chown(at("group"), None, Some(OTHER)).unwrap();
    mode(&at("group"), 0o770);
    mode(&at("sticky"), 0o1777);
    fs::write(at("sticky/theirs"), "old").unwrap();
    chown(at("sticky/theirs"), Some(OTHER), None).unwrap();
    symlink(at("sticky/ours"), at("sticky/link")).unwrap();
    std::os::unix::fs::lchown(at("sticky/link"), Some(OTHER), None).unwrap();
    symlink(at("user/ours"), at("link")).unwrap();
    for path in [
        "user/file",
        "user/new",
        "user/new/new",
        "user/ours/file",
        "user/ours/../../sticky/file",
        "link/file",
        "world/file",
        "group/file",
        "sticky/theirs",
        "sticky/link/file",
    ] {
        let error = edit(&at(path), "new").unwrap_err();
        assert!(error.advice().is_some(), "{path}: {}", error.message());
    }
    let error = HostFile::open(&at("user/file")).unwrap_err();
    let user = at("user");
    let text = format!(
        "{0}/file: {0} belongs to the user {OTHER}, so another file could be put in its place",
        user.display()
    );
    assert_eq!(error.message(), text);
    let advice = format!("run the command as that user, with sudo -u '#{OTHER}'");
    assert_eq!(error.advice(), Some(advice));
    for path in ["sticky/file", "sticky/new", "sticky/ours/file"] {
        edit(&at(path), "new").unwrap();
        assert_eq!(fs::read_to_string(at(path)).unwrap(), "new", "{path}");
    }
}

/// Sets an access list: permissions of a user, of a group, of the owning group, and the mask.
fn acl(path: &Path, name: &CStr, user: (u32, u16), group: (u32, u16), owning: u16, mask: u16) {
    let none = u32::MAX;
    let entries = [
        (1, 7, none),
        (2, user.1, user.0),
        (4, owning, none),
        (8, group.1, group.0),
        (16, mask, none),
        (32, 5, none),
    ];
    set_acl(&File::open(path).unwrap(), name, &entries);
}

/// Removes an access list: without users and groups, the kernel keeps it as the mode.
fn remove_acl(path: &Path, name: &CStr) {
    let entries = [(1, 7), (4, 5), (32, 5)];
    let file = File::open(path).unwrap();
    set_acl(
        &file,
        name,
        &entries.map(|(kind, bits)| (kind, bits, u32::MAX)),
    );
    assert_eq!(xattr::get(&file, name), Err(Errno::ENODATA));
}

fn set_acl(file: &File, name: &CStr, entries: &[(u16, u16, u32)]) {
    let mut list = vec![2, 0, 0, 0];
    for (kind, permissions, id) in entries {
        list.extend(kind.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    xattr::set(file, name, &list).unwrap();
}

#[test]
#[ignore = "needs root"]
fn an_acl_opens_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("directory");
    let file = at.join("file");
    fs::create_dir(&at).unwrap();
    let access = xattr::ACCESS_LIST;
    for (name, user, group, owning, mask, who) in [
        (access, (OTHER, 7), (0, 5), 5, 7, Some("user")),
        (access, (0, 7), (OTHER, 7), 5, 7, Some("group")),
        (access, (OTHER, 2), (OTHER, 5), 7, 2, Some("user")),
        (access, (OTHER, 7), (OTHER, 7), 7, 5, None),
        (access, (OTHER, 5), (OTHER, 5), 5, 7, None),
        (access, (0, 7), (OTHER, 5), 5, 7, None),
    ] {
        acl(&at, name, user, group, owning, mask);
        let result = edit(&file, "new");
        let Some(who) = who else {
            result.unwrap();
            continue;
        };
        let (error, at) = (result.unwrap_err(), at.display());
        let text = format!("{at}/file: the {who} {OTHER} may write to {at}, so another file");
        assert!(error.message().starts_with(&text), "{}", error.message());
        assert_eq!(error.advice(), Some(format!("chmod g-w {at}")));
    }
    // The advice is right.
    acl(&at, access, (OTHER, 7), (OTHER, 7), 7, 7);
    edit(&file, "new").unwrap_err();
    mode(&at, 0o755);
    edit(&file, "new").unwrap();
    // A list for new files lets nobody write to this directory.
    let default = c"system.posix_acl_default";
    remove_acl(&at, access);
    mode(&at, 0o775);
    acl(&at, default, (OTHER, 7), (OTHER, 7), 7, 7);
    edit(&file, "new").unwrap();
    // But to the directories that it is for.
    edit(&at.join("new/file"), "new").unwrap_err();
    // The owning group's right is in the list.
    chown(&at, None, Some(OTHER)).unwrap();
    acl(&at, access, (0, 7), (0, 5), 5, 7);
    edit(&file, "new").unwrap();
    acl(&at, access, (0, 7), (0, 5), 7, 7);
    edit(&file, "new").unwrap_err();
}

#[test]
#[ignore = "needs root"]
fn a_link_of_another_user_is_not_followed_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("etc")).unwrap();
    fs::write(at("etc/file"), "old").unwrap();
    for (name, target) in [("link", "etc/file"), ("directory", "etc")] {
        symlink(target, at(name)).unwrap();
        std::os::unix::fs::lchown(at(name), Some(OTHER), None).unwrap();
    }
    for (path, link) in [("link", "link"), ("directory/file", "directory")] {
        let error = edit(&at(path), "new").unwrap_err();
        let text = format!("{} belongs to the user {OTHER}, so", at(link).display());
        assert!(error.message().contains(&text), "{}", error.message());
    }
    write(&at("directory/file"), "new").unwrap_err();
    write(&at("link"), "new").unwrap();
    assert!(!at("link").is_symlink());
    assert_eq!(fs::read_to_string(at("etc/file")).unwrap(), "old");
}

#[test]
#[ignore = "needs root"]
fn a_new_file_in_anothers_directory_is_the_callers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("user")).unwrap();
    fs::create_dir(at("etc")).unwrap();
    fs::write(at("etc/shadow"), "secret").unwrap();
    fs::write(at("user/old"), "old").unwrap();
    mode(&at("user/old"), 0o4777);
    symlink("../etc", at("user/directory")).unwrap();
    for (name, target) in [("link", "../etc/shadow"), ("dangling", "../etc/new")] {
        symlink(target, at("user").join(name)).unwrap();
    }
    for name in ["user", "user/old"] {
        chown(at(name), Some(OTHER), Some(OTHER)).unwrap();
    }
    for name in ["new", "old", "link", "dangling", "new-directory/file"] {
        let path = at("user").join(name);
        write(&path, "text").unwrap();
        let facts = path.symlink_metadata().unwrap();
        assert!(facts.is_file(), "{name}");
        assert_eq!((facts.uid(), facts.gid()), (0, 0), "{name}");
        assert_eq!(facts.mode() & 0o7133, 0, "{name}");
        create(&path, b"more", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "more");
    }
    for path in ["user/directory/file", "user/directory/shadow"] {
        write(&at(path), "text").unwrap_err();
        create(&at(path), b"text", 0o644).unwrap_err();
        HostFile::open_anywhere(&at(path)).unwrap_err();
    }
    assert_eq!(fs::read_dir(at("etc")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(at("etc/shadow")).unwrap(), "secret");
}

#[test]
fn output_into_an_open_file_or_a_device() {
    let mut file = tempfile::tempfile().unwrap();
    for path in ["/proc/self/fd", "/dev/fd"] {
        let path = format!("{path}/{}", file.as_raw_fd());
        write(Path::new(&path), &path).unwrap();
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, path);
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    write(Path::new(&path), "through a pipe").unwrap();
    drop(writer);
    assert_eq!(std::io::read_to_string(reader).unwrap(), "through a pipe");
    write(Path::new("/dev/null"), "x").unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn a_fifo_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let error = read(&fifo, 1 << 20).unwrap_err().message();
    assert!(error.contains("not a regular file"), "{error}");
}
