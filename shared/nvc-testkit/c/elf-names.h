/*
 * Reads what a program or a shared object says about itself. For look.c and scripts/test/gpu/check.c.
 *
 * elf_names() returns 32 or 64, or 0 if the file is no ELF file; its own name, and the names that it needs, each with a
 * comma after it. The files are the driver's: sizes are checked, contents are believed.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ELF_READ(bits)                                                                                                 \
    static void elf_read##bits(const char *bytes, size_t size, char *own, char *needs, size_t room)                    \
    {                                                                                                                  \
        const Elf##bits##_Ehdr *head = (const void *)bytes;                                                            \
        const Elf##bits##_Phdr *part = (const void *)(bytes + head->e_phoff);                                          \
        const Elf##bits##_Dyn *first = NULL;                                                                           \
        size_t table = 0, place = 0;                                                                                   \
                                                                                                                       \
        if (size < sizeof *head || head->e_phoff + head->e_phnum * sizeof *part > size)                                \
            return;                                                                                                    \
        for (int i = 0; i < head->e_phnum; i++)                                                                        \
            if (part[i].p_type == PT_DYNAMIC && part[i].p_offset < size)                                               \
                first = (const void *)(bytes + part[i].p_offset);                                                      \
        for (const Elf##bits##_Dyn *at = first; at && at->d_tag; at++)                                                 \
            if (at->d_tag == DT_STRTAB)                                                                                \
                table = at->d_un.d_ptr;                                                                                \
        /* The address of the strings as a place in the file. */                                                      \
        for (int i = 0; i < head->e_phnum; i++)                                                                        \
            if (part[i].p_type == PT_LOAD && table >= part[i].p_vaddr && table - part[i].p_vaddr < part[i].p_filesz)   \
                place = part[i].p_offset + (table - part[i].p_vaddr);                                                  \
        for (const Elf##bits##_Dyn *at = first; at && place && at->d_tag; at++) {                                      \
            const char *name = bytes + place + at->d_un.d_val;                                                         \
            size_t used = strlen(needs);                                                                               \
                                                                                                                       \
            if (at->d_tag == DT_SONAME)                                                                                \
                snprintf(own, room, "%s", name);                                                                       \
            if (at->d_tag == DT_NEEDED)                                                                                \
                snprintf(needs + used, room - used, "%s,", name);                                                      \
        }                                                                                                              \
    }

ELF_READ(32)
ELF_READ(64)

static int elf_names(const char *path, char *own, char *needs, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), bits = 0;
    struct stat at;
    char *bytes = MAP_FAILED;

    *own = *needs = 0;
    if (fd >= 0 && !fstat(fd, &at) && S_ISREG(at.st_mode) && at.st_size > EI_NIDENT)
        bytes = mmap(NULL, (size_t)at.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (bytes == MAP_FAILED)
        return 0;
    if (!memcmp(bytes, ELFMAG, SELFMAG))
        bits = bytes[EI_CLASS] == ELFCLASS32 ? 32 : 64;
    if (bits)
        (bits == 32 ? elf_read32 : elf_read64)(bytes, (size_t)at.st_size, own, needs, room);
    munmap(bytes, (size_t)at.st_size);
    return bits;
}
