// Prints the descriptors of the protocol's own module, which ours are compared with.
package main

import (
	"log"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

func main() {
	text, err := proto.Marshal(protodesc.ToFileDescriptorProto(csi.File_csi_proto))
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		log.Fatal(err)
	}
}
