use super::*;

impl Source for &[u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let tail = usize::try_from(offset).ok().and_then(|at| self.get(at..));
        let mut tail = tail.unwrap_or_default();
        io::Read::read(&mut tail, buffer)
    }
}

/// Builds a native little-endian library with an ABI note and needed libraries, far apart as in real ones.
pub(crate) fn build(abi: Option<[u32; 4]>, needed: Option<&[&str]>) -> Vec<u8> {
    const AT: u64 = 4096;
    let mut strings = vec![0];
    let mut dynamic = Vec::new();
    for name in needed.unwrap_or_default() {
        dynamic.extend([DT_NEEDED, strings.len() as u64]);
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    dynamic.extend([DT_STRTAB, 0x10_0000 + 2 * AT, 0, 0]);
    let dynamic: Vec<u8> = dynamic.into_iter().flat_map(u64::to_le_bytes).collect();
    let mut note: Vec<u8> = [4, 3, 3].into_iter().flat_map(u32::to_le_bytes).collect();
    note.extend(b"GNU\0abc\0"); // a build id first
    if let Some(abi) = abi {
        note.extend([4, 16, 1].into_iter().flat_map(u32::to_le_bytes));
        note.extend(b"GNU\0");
        note.extend(abi.into_iter().flat_map(u32::to_le_bytes));
    }
    let mut segments = vec![
        (PT_LOAD, 0, 0x10_0000, 2 * AT + strings.len() as u64),
        (PT_NOTE, 512, 0x10_0000 + 512, note.len() as u64),
    ];
    if needed.is_some() {
        segments.push((PT_DYNAMIC, AT, 0x10_0000 + AT, dynamic.len() as u64));
    }
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([3u16, 62].into_iter().flat_map(u16::to_le_bytes));
    file.extend(1u32.to_le_bytes());
    file.extend([0u64, 64, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend(0u32.to_le_bytes());
    let sizes = [64u16, 56, segments.len() as u16, 64, 0, 0];
    file.extend(sizes.into_iter().flat_map(u16::to_le_bytes));
    for (kind, offset, address, size) in segments {
        file.extend([kind, 4].into_iter().flat_map(u32::to_le_bytes));
        let numbers = [offset, address, address, size, size, 4];
        file.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }
    for (at, part) in [
        (512, note),
        (AT as usize, dynamic),
        (2 * AT as usize, strings),
    ] {
        file.resize(at, 0);
        file.extend(part);
    }
    file
}

fn sample() -> Vec<u8> {
    let needed = ["libc.so.6", "libnvidia-glcore.so.550.1"];
    build(Some([0, 2, 3, 99]), Some(&needed))
}

#[test]
fn finds_notes_and_needs() {
    let file = sample();
    let library = Library::open(&file[..]).unwrap();
    assert_eq!(library.abi().unwrap(), [0, 2, 3, 99]);
    assert_eq!(library.build_id().unwrap().as_deref(), Some(&b"abc"[..]));
    assert!(library.needs(&["libnvidia-glcore.so"]).unwrap());
    assert!(library.needs(&["libfoo.so", "libc."]).unwrap());
    assert!(!library.needs(&["libnvidia-eglcore.so"]).unwrap());
    let needed = library.names().unwrap().needed;
    assert_eq!(needed, [&b"libc.so.6"[..], b"libnvidia-glcore.so.550.1"]);
}

#[test]
fn says_what_is_missing() {
    let file = build(None, None);
    let library = Library::open(&file[..]).unwrap();
    assert!(matches!(library.abi(), Err(ElfError::NoAbiNote)));
    let needs = library.needs(&["libc"]);
    assert!(matches!(needs, Err(ElfError::NoDynamicSection)));
    let text = Library::open(&b"just some text, longer than an ELF header would be"[..]);
    assert!(matches!(text, Err(ElfError::NotElf(_))));
    assert!(Library::open(&b""[..]).is_err());
}

/// Builds a library with one section, whose bytes are a note.
pub(crate) fn with_section(name: &str, note: &[u8]) -> Vec<u8> {
    let mut file = build(None, None);
    let mut strings = b"\0".to_vec();
    strings.extend(name.as_bytes());
    strings.extend(b"\0.shstrtab\0");
    let (note_at, strings_at) = (file.len(), file.len() + note.len());
    file.extend(note);
    file.extend(&strings);
    let table_at = file.len();
    for (name, at, size) in [
        (0, 0, 0),
        (1, note_at, note.len()),
        (name.len() + 2, strings_at, strings.len()),
    ] {
        file.extend([name as u32, 7].into_iter().flat_map(u32::to_le_bytes));
        let numbers = [0, 0, at as u64, size as u64, 0, 4, 0];
        file.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }
    file[40..48].copy_from_slice(&(table_at as u64).to_le_bytes());
    for (at, number) in [(58, 64_u16), (60, 3), (62, 2)] {
        file[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
    file
}

/// Returns the bytes of a note.
pub(crate) fn note(owner: &str, claimed: usize, value: &[u8]) -> Vec<u8> {
    let sizes = [owner.len() as u32 + 1, claimed as u32, 1];
    let mut note: Vec<u8> = sizes.into_iter().flat_map(u32::to_le_bytes).collect();
    note.extend(owner.as_bytes());
    note.push(0);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(value);
    note
}

#[test]
fn notes_are_found_by_section_and_owner() {
    let of = |file: &[u8], section: &str| {
        let library = Library::open(file).unwrap();
        library.note(section, "NVIDIA Corporation").unwrap()
    };
    let bytes = note("NVIDIA Corporation", 5, b"value and more");
    let file = with_section(".note.x", &bytes);
    assert_eq!(of(&file, ".note.x").as_deref(), Some(&b"value"[..]));
    assert_eq!(of(&file, ".note.y"), None);
    assert_eq!(of(&file, ".note"), None);
    assert_eq!(of(&sample(), ".note.x"), None);
    let claims = with_section(".note.x", &note("NVIDIA Corporation", 500, b"value"));
    assert_eq!(of(&claims, ".note.x").as_deref(), Some(&b"value"[..]));
    let other = with_section(".note.x", &note("Other", 5, b"value"));
    assert_eq!(of(&other, ".note.x"), None);
}

#[test]
fn damaged_section_tables_have_no_note() {
    let bytes = note("NVIDIA Corporation", 5, b"value");
    let file = with_section(".note.x", &bytes);
    let note =
        |file: &[u8]| Library::open(file).and_then(|l| l.note(".note.x", "NVIDIA Corporation"));
    for length in 0..file.len() {
        let found = note(&file[..length]);
        assert!(!matches!(found, Ok(Some(_))), "{length} of {}", file.len());
    }
    for at in 40..64 {
        for byte in 0..=255 {
            let mut file = file.clone();
            file[at] = byte;
            let _ = note(&file);
        }
    }
}

/// A truncated file may lack an answer, but must not give a wrong one.
#[test]
fn truncated_names_do_not_match() {
    let file = sample();
    for length in 0..file.len() {
        let library = Library::open(&file[..length]);
        let needs = library.and_then(|library| library.needs(&["libnvidia-glcore.so"]));
        assert!(!matches!(needs, Ok(false)), "{length} of {}", file.len());
    }
}

#[test]
fn reads_a_real_program() {
    let library = Library::open(File::open("/proc/self/exe").unwrap()).unwrap();
    assert!(library.needs(&["libc.so"]).unwrap());
    assert!(library.is_shared()); // position-independent programs are
    assert_eq!(library.soname().unwrap(), None);
}

#[test]
fn names_are_read() {
    let object = |machine| nvc_testkit::elf::SharedObject::new(machine);
    for (machine, class, number) in [
        (nvc_testkit::elf::Machine::X86_64, 2, 62),
        (nvc_testkit::elf::Machine::I386, 1, 3),
        (nvc_testkit::elf::Machine::Arm, 1, 40),
    ] {
        let bytes = object(machine)
            .soname("libx.so.1")
            .needed("libc.so.6")
            .bytes();
        let library = Library::open(&bytes[..]).unwrap();
        assert_eq!(
            library.soname().unwrap().as_deref(),
            Some(&b"libx.so.1"[..])
        );
        assert!(library.is_shared());
        let identity = library.identity();
        assert_eq!((identity.class, identity.machine), (class, number));
        let bytes = object(machine).bytes();
        assert_eq!(Library::open(&bytes[..]).unwrap().soname().unwrap(), None);
    }
}

#[test]
fn sections_say_where_names_are() {
    const STRTAB: [u8; 8] = DT_STRTAB.to_le_bytes();
    let object = nvc_testkit::elf::SharedObject::new(nvc_testkit::elf::Machine::X86_64);
    let mut bytes = object.soname("libx.so.1").needed("libc.so.6").bytes();
    let at = bytes.chunks(8).position(|word| word == STRTAB).unwrap() * 8;
    bytes[at + 8] += 4;
    let library = Library::open(&bytes[..]).unwrap();
    assert_ne!(library.soname().unwrap().unwrap(), b"libx.so.1");
    let library = library.by_sections();
    assert_eq!(library.soname().unwrap().unwrap(), b"libx.so.1");
    assert!(library.needs(&["libc.so"]).unwrap());
}

#[test]
fn an_abi_note_may_be_in_a_section_alone() {
    let words = [4, 16, 1, u32::from_le_bytes(*b"GNU\0"), 0, 2, 3, 99];
    let note = words.map(u32::to_le_bytes).concat();
    let of = |section: &str| {
        let file = with_section(section, &note);
        Library::open(&file[..]).unwrap().abi_of_section()
    };
    assert_eq!(of(".note.ABI-tag"), Some([0, 2, 3, 99]));
    assert_eq!(of(".note.other"), None);
}
