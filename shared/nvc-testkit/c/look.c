// Reports what programs of a container find: `look WORD...` prints a line for each word, in which columns are separated
// by tabs: the word, the path to which it leads, device and inode number; or the word and `-`.
//
//   libx.so.1      a library, as dlopen(3) finds it
//   32:libx.so.1   a library of 32-bit programs, in the loader's cache
//   /path          a file, whatever links lead to it
//   name           a program of PATH
//
// At last it takes each library that is mounted into the container, and asks the loader for its SONAME. Each that leads
// to another file is a line `wrong SONAME`, the mounted file, and the other one. What such a library needs and the
// container lacks is a line `lacks NAME`, and the library.

#define _GNU_SOURCE
#include <dlfcn.h>
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

// Loads a library in a process of its own. Returns its path or, after a `!`, the error.
static const char *loaded(const char *name)
{
    static char told[PATH_MAX + 64];
    int ends[2];
    if (pipe(ends))
        return "!";
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct link_map *map = NULL;
        void *handle = dlopen(name, RTLD_LAZY);
        if (!handle)
            dprintf(ends[1], "!%s", dlerror());
        else if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0)
            dprintf(ends[1], "%s", map->l_name);
        _exit(0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], told, sizeof told - 1);
    close(ends[0]);
    waitpid(child, NULL, 0);
    told[length > 0 ? length : 0] = 0;
    return told;
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
        char name[PATH_MAX], needs[PATH_MAX], place[PATH_MAX] = "-", path[PATH_MAX];
        if (elf_names(at, name, needs, sizeof name) != 64 || !*name)
            continue;
        snprintf(path, sizeof path, "%s", at);
        int lacks = 0;
        for (char *need = strtok(needs, ","); need; need = strtok(NULL, ",")) {
            const char *answer = loaded(need);
            // The loader names what is missing first, which may be what the needed one needs.
            if (*answer == '!' && !strncmp(answer + 1, need, strlen(need)))
                printf("lacks %s\t%s\t-\t0\n", need, path);
            lacks |= *answer == '!';
        }
        struct stat own, other;
        const char *told = loaded(name);
        if (lacks && *told == '!' && strncmp(told + 1, name, strlen(name)) && strstr(told, ": cannot open "))
            continue;
        int same = *told == '/' && !stat(path, &own) && !stat(told, &other) && own.st_dev == other.st_dev &&
                   own.st_ino == other.st_ino;
        if (!same)
            printf("wrong %s\t%s\t%s\t0\n", name, path, *told == '/' && realpath(told, place) ? place : "-");
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
