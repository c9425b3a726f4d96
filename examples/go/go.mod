module example.org/gpus

go 1.19
