# Completion of nvidia-docker(1), which takes docker's words: docker's own.
if declare -F _comp_load > /dev/null; then
    _comp_load docker
elif declare -F _completion_loader > /dev/null; then
    _completion_loader docker
fi
if complete -p docker > /dev/null 2>&1; then
    eval "$(complete -p docker | sed 's/ docker$/ nvidia-docker/')"
fi
