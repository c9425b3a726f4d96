// Reports what programs of a container find: `look WORD...` prints a line for each word, in which columns are separated
// by tabs: the word, the path to which it leads, device and inode number; or the word and `-`.
//
//   libx.so.1      a library, as dlopen(3) finds it
//   32:libx.so.1   a library of 32-bit programs, in the loader's cache
//   /path          a file, whatever links lead to it
//   name           a program of PATH
//
// At last it takes each library that is mounted into the container, and asks the loader for its SONAME. Each that leads
// to another file is a line `wrong SONAME`, the mounted file, and the other one.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void print(const char *word, const char *path)
{
    char real[PATH_MAX];
    struct stat at;
    if (!path || !realpath(path, real) || stat(real, &at))
        printf("%s\t-\n", word);
    else
        printf("%s\t%s\t%llu\t%llu\n", word, real, (unsigned long long)at.st_dev, (unsigned long long)at.st_ino);
    fflush(stdout);
}

// In a process of its own: a library that is loaded once answers to its SONAME from then on.
static void library(const char *word, const char *name)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct link_map *map = NULL;
        void *handle = dlopen(name, RTLD_LAZY);
        if (!handle)
            fprintf(stderr, "look: %s\n", dlerror());
        if (handle && dlinfo(handle, RTLD_DI_LINKMAP, &map))
            map = NULL;
        print(word, map ? map->l_name : NULL);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status))
        printf("%s\t-\n", word);
}

static void narrow(const char *word)
{
    char line[PATH_MAX + 256], path[PATH_MAX] = "";
    const char *name = word + strlen("32:");
    FILE *cache = popen("ldconfig -p 2> /dev/null", "r");
    while (cache && fgets(line, sizeof line, cache)) {
        char *at = line + strspn(line, "\t"), *arrow = strstr(line, " => ");
        if (!*path && arrow && !strncmp(at, name, strlen(name)) && !strncmp(at + strlen(name), " (libc6)", 8)) {
            arrow[strcspn(arrow, "\n")] = 0;
            snprintf(path, sizeof path, "%s", arrow + strlen(" => "));
        }
    }
    if (cache)
        pclose(cache);
    print(word, *path ? path : NULL);
}

static void program(const char *word)
{
    char list[4096], path[PATH_MAX];
    const char *search = getenv("PATH");
    snprintf(list, sizeof list, "%s", search ? search : "");
    for (char *at = strtok(list, ":"); at; at = strtok(NULL, ":")) {
        snprintf(path, sizeof path, "%s/%s", at, word);
        if (access(path, X_OK) == 0) {
            print(word, path);
            return;
        }
    }
    print(word, NULL);
}

// Returns the SONAME of a native library; empty if it has none, or is another file.
static const char *soname(const char *path)
{
    static char name[PATH_MAX];
    static unsigned char bytes[1 << 22];
    name[0] = 0;
    FILE *file = fopen(path, "r");
    if (!file)
        return name;
    size_t size = fread(bytes, 1, sizeof bytes - 1, file);
    fclose(file);
    const ElfW(Ehdr) *head = (const void *)bytes;
    if (size < sizeof *head || memcmp(bytes, ELFMAG, SELFMAG) || bytes[EI_CLASS] != ELFCLASS64)
        return name;
    const ElfW(Phdr) *segments = (const void *)(bytes + head->e_phoff);
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < head->e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(bytes + segments[i].p_offset);
    unsigned long strings = 0, at = 0;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_STRTAB)
            strings = dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SONAME)
            at = dynamic->d_un.d_val;
    }
    // The address of the strings as a place in the file.
    for (int i = 0; at && i < head->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD && strings >= segments[i].p_vaddr &&
            strings < segments[i].p_vaddr + segments[i].p_filesz)
            snprintf(name, sizeof name, "%s",
                     (char *)bytes + segments[i].p_offset + (strings - segments[i].p_vaddr) + at);
    return name;
}

static void mounted(void)
{
    char line[8192];
    FILE *table = fopen("/proc/self/mountinfo", "r");
    while (table && fgets(line, sizeof line, table)) {
        char *at = line;
        for (int i = 0; i < 4 && at; i++)
            at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
        char *end = at ? strchr(at, ' ') : NULL;
        if (!end || (*end = 0, !strstr(at, ".so")))
            continue;
        const char *name = soname(at);
        if (!*name)
            continue;
        int ends[2];
        struct stat own, other;
        char told[PATH_MAX + 64] = "", place[PATH_MAX] = "-";
        if (pipe(ends))
            continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], 1);
            struct link_map *map = NULL;
            void *handle = dlopen(name, RTLD_LAZY);
            if (handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && write(1, map->l_name, strlen(map->l_name)) < 0)
                _exit(1);
            _exit(0);
        }
        close(ends[1]);
        ssize_t length = read(ends[0], told, sizeof told - 1);
        close(ends[0]);
        waitpid(child, NULL, 0);
        told[length > 0 ? length : 0] = 0;
        int same = *told && !stat(at, &own) && !stat(told, &other) && own.st_dev == other.st_dev &&
                   own.st_ino == other.st_ino;
        if (!same)
            printf("wrong %s\t%s\t%s\t0\n", name, at, *told && realpath(told, place) ? place : "-");
    }
}

int main(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (words[i][0] == '/')
            print(words[i], words[i]);
        else if (!strncmp(words[i], "32:", 3))
            narrow(words[i]);
        else if (strstr(words[i], ".so"))
            library(words[i], words[i]);
        else
            program(words[i]);
    }
    mounted();
    return 0;
}
