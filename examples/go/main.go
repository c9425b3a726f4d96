// Prints the driver's version and the machine's GPUs.
//
//	go build -o gpus . && ./gpus [DRIVER-ROOT]
package main

/*
#cgo LDFLAGS: -lnvidia-container
#include <nvc.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

func list(root string) error {
	ctx := C.nvc_context_new()
	defer C.nvc_context_free(ctx)
	config := C.nvc_config_new()
	defer C.nvc_config_free(config)
	path := C.CString(root)
	defer C.free(unsafe.Pointer(path))
	config.root = path

	// Go may run each call on a different thread; a context permits that.
	if C.nvc_init(ctx, config, nil) != 0 {
		return errors.New(C.GoString(C.nvc_error(ctx)))
	}
	defer C.nvc_shutdown(ctx)
	driver := C.nvc_driver_info_new(ctx, nil)
	if driver == nil {
		return errors.New(C.GoString(C.nvc_error(ctx)))
	}
	defer C.nvc_driver_info_free(driver)
	devices := C.nvc_device_info_new(ctx, nil)
	if devices == nil {
		return errors.New(C.GoString(C.nvc_error(ctx)))
	}
	defer C.nvc_device_info_free(devices)

	fmt.Printf("driver %s, CUDA %s\n", C.GoString(driver.nvrm_version), C.GoString(driver.cuda_version))
	for index, gpu := range unsafe.Slice(devices.gpus, devices.ngpus) {
		fmt.Printf("%d: %s %s\n", index, C.GoString(gpu.model), C.GoString(gpu.uuid))
	}
	return nil
}

func main() {
	root := "/"
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := list(root); err != nil {
		fmt.Fprintln(os.Stderr, "gpus:", err)
		os.Exit(1)
	}
}
