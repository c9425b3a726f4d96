/*
 * Receives terminals from a runtime's --console-socket, as runc's own recvtty does for its tests. That one is a Go
 * program whose libraries Debian's source package lacks.
 *
 *   recvtty [--pid-file FILE] [--mode null|single] [--no-stdin] SOCKET
 *
 * `null` takes all terminals and forgets their output; `single`, the default, takes one and copies its output to ours.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Returns the descriptor that comes with the terminal's name, or -1. */
static int receive(int connection)
{
    char name[4096];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec text = {name, sizeof name};
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header;
    int terminal = -1;

    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) >= 0 && (header = CMSG_FIRSTHDR(&message)) &&
        header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(&terminal, CMSG_DATA(header), sizeof terminal);
    return terminal;
}

/* Reads a terminal to its end, which is EIO. */
static void drain(int terminal, int output)
{
    char bytes[4096];
    ssize_t count;

    while ((count = read(terminal, bytes, sizeof bytes)) > 0)
        if (output >= 0 && write(output, bytes, (size_t)count) < 0)
            break;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"pid-file", required_argument, NULL, 'p'}, {"mode", required_argument, NULL, 'm'},
        {"no-stdin", no_argument, NULL, 'n'}, {NULL, 0, NULL, 0}};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int all = 0, option, listener;
    const char *pid_file = NULL;

    while ((option = getopt_long(argc, argv, "m:", options, NULL)) != -1) {
        if (option == 'p')
            pid_file = optarg;
        else if (option == 'm')
            all = !strcmp(optarg, "null");
        else if (option != 'n')
            return 2;
    }
    if (optind + 1 != argc || strlen(argv[optind]) >= sizeof address.sun_path)
        return 2;
    strcpy(address.sun_path, argv[optind]);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) {
        perror("recvtty");
        return 1;
    }
    if (pid_file) {
        FILE *file = fopen(pid_file, "we");
        if (!file || fprintf(file, "%d", (int)getpid()) < 0 || fclose(file)) {
            perror(pid_file);
            return 1;
        }
    }
    do {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC), terminal = receive(connection);

        close(connection);
        if (terminal < 0)
            continue;
        if (!all) {
            drain(terminal, STDOUT_FILENO);
        } else if (!fork()) {
            drain(terminal, -1);
            _exit(0);
        }
        close(terminal);
    } while (all);
    return 0;
}
