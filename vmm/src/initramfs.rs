//! The initramfs of a Linux guest: PID 1, and the directories that it mounts on.
//!
//! The format is "newc" (Documentation/driver-api/early-userspace/buffer-format.rst): entries of a header
//! in hexadecimal, a path and data, each padded to four bytes. The same program gives the same bytes.

/// PID 1 of Linux guests, as vmm/build.rs built it: a static ELF program.
pub const INIT: &[u8] = include_bytes!(env!("RQSCOPE_INIT"));

/// File types and permissions (include/uapi/linux/stat.h).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// Device number of /dev/console (Documentation/admin-guide/devices.txt). The kernel opens it for PID 1.
const CONSOLE: (u32, u32) = (5, 1);
/// The entry after the last.
const TRAILER: &str = "TRAILER!!!";

/// An initramfs with `init` as its /init.
pub fn pack(init: &[u8]) -> Vec<u8> {
    let mut archive = Archive { bytes: Vec::with_capacity(init.len() + 1024), inode: 0 };
    for directory in ["dev", "proc", "sys"] {
        archive.entry(directory, DIRECTORY, (0, 0), &[]);
    }
    archive.entry("dev/console", CHARACTER_DEVICE, CONSOLE, &[]);
    archive.entry("init", PROGRAM, (0, 0), init);
    archive.entry(TRAILER, 0, (0, 0), &[]);
    archive.bytes
}

struct Archive {
    bytes: Vec<u8>,
    /// Of the last entry. They only have to differ.
    inode: u32,
}

impl Archive {
    /// Appends an entry that is root's and of 1970. `init` is at most a few hundred KiB, the field's
    /// limit 4 GiB.
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.inode += 1;
        let (user, group, links, time) = (0, 0, 1, 0);
        let of_device = (0, 0);
        let (name_size, checksum) = (path.len() as u32 + 1, 0);
        self.bytes.extend(b"070701");
        for field in [
            self.inode,
            mode,
            user,
            group,
            links,
            time,
            data.len() as u32,
            of_device.0,
            of_device.1,
            device.0,
            device.1,
            name_size,
            checksum,
        ] {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes().chain([0]));
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Path, mode, device and data of an entry.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive as buffer-format.rst describes it.
    fn unpack(mut bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let whole = bytes.len();
        loop {
            let (header, rest) = bytes.split_at(110);
            assert_eq!(&header[..6], b"070701");
            let text = std::str::from_utf8(&header[6..]).unwrap();
            let field = |i: usize| u32::from_str_radix(&text[8 * i..8 * i + 8], 16).unwrap();
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let (name, _) = rest.split_at(name_size - 1);
            assert_eq!(rest[name_size - 1], 0, "names end with NUL");
            let name = String::from_utf8(name.to_vec()).unwrap();
            let data = (110 + name_size).next_multiple_of(4);
            let end = (data + size).next_multiple_of(4);
            if name == TRAILER {
                assert_eq!(bytes.len(), end, "of {whole}");
                return entries;
            }
            entries.push((
                name,
                field(1),
                (field(9), field(10)),
                bytes[data..data + size].to_vec(),
            ));
            bytes = &bytes[end..];
        }
    }

    #[test]
    fn the_initramfs_has_what_the_kernel_and_pid_1_need_parents_first() {
        for init in [b"".as_slice(), b"x", b"abcd", &[0xff; 4097]] {
            let expected: [Entry; 5] = [
                ("dev".into(), 0o40755, (0, 0), vec![]),
                ("proc".into(), 0o40755, (0, 0), vec![]),
                ("sys".into(), 0o40755, (0, 0), vec![]),
                ("dev/console".into(), 0o20600, (5, 1), vec![]),
                ("init".into(), 0o100755, (0, 0), init.to_vec()),
            ];
            assert_eq!(unpack(&pack(init)), expected);
        }
    }

    #[test]
    fn cpio_lists_the_initramfs_where_there_is_a_cpio() {
        let Ok(mut cpio) = Command::new("cpio")
            .args(["--list", "--verbose", "--quiet", "--numeric-uid-gid"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return;
        };
        cpio.stdin.take().unwrap().write_all(&pack(b"#!")).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let list = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = list.lines().collect();
        assert_eq!(lines.len(), 5, "{list}");
        assert!(lines[3].starts_with("crw-------") && lines[3].contains("5,   1"), "{list}");
        assert!(lines[4].starts_with("-rwxr-xr-x") && lines[4].ends_with(" init"), "{list}");
    }

    #[test]
    fn pid_1_is_a_static_program_that_starts_by_itself() {
        use object::elf::{ET_EXEC, FileHeader64, PT_INTERP};
        use object::read::elf::{FileHeader, ProgramHeader};

        let elf = FileHeader64::<object::Endianness>::parse(INIT).unwrap();
        let endian = elf.endian().unwrap();
        assert_eq!(elf.e_type.get(endian), ET_EXEC);
        let segments = elf.program_headers(endian, INIT).unwrap();
        assert!(segments.iter().all(|s| s.p_type(endian) != PT_INTERP));
        assert!(segments.iter().any(|s| {
            let code = s.p_vaddr(endian)..s.p_vaddr(endian) + s.p_filesz(endian);
            code.contains(&elf.e_entry.get(endian))
        }));
    }
}
