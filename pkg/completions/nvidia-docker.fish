# Completion of nvidia-docker(1), which takes docker's words: docker's own.
complete --command nvidia-docker --wraps docker
