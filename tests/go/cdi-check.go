// Reads CDI specifications with the Go reference library, and holds them against its schema: a second opinion.
package main

import (
	"fmt"
	"os"

	"github.com/container-orchestrated-devices/container-device-interface/pkg/cdi"
	"github.com/container-orchestrated-devices/container-device-interface/schema"
)

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		spec, err := cdi.ReadSpec(path, 0)
		if err != nil {
			fmt.Println("refused", path, err)
			failed = true
			continue
		}
		if err := schema.BuiltinSchema().ValidateType(spec.Spec); err != nil {
			fmt.Println("schema", path, err)
			failed = true
			continue
		}
		// As the program `validate` of that library, which Debian does not package.
		if err := schema.BuiltinSchema().ValidateFile(path); err != nil {
			fmt.Println("validate", path, err)
			failed = true
			continue
		}
		fmt.Println("ok", path, spec.GetVendor(), len(spec.Devices))
	}
	if failed {
		os.Exit(1)
	}
}
