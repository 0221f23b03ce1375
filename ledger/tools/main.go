// Command tools generates the Go code of the ledger's contract:
//
//	cd ledger/tools && GOWORK=off go run .
//
// It needs no protoc: protocompile reads the .proto, and the plugins are tools of this module.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	source = "bluecone/ledger/v1/ledger.proto"
	prefix = "github.com/bluecone-go/bluecone/ledger/"
)

func main() {
	if err := run(context.Background(), ".."); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, ledger string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{filepath.Join(ledger, "proto")}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, source)
	if err != nil {
		return err
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source},
		ProtoFile: []*descriptorpb.FileDescriptorProto{
			protoutil.ProtoFromFileDescriptor(durationpb.File_google_protobuf_duration_proto),
			protoutil.ProtoFromFileDescriptor(timestamppb.File_google_protobuf_timestamp_proto),
			protoutil.ProtoFromFileDescriptor(files[0]),
		},
		Parameter: proto.String("module=" + prefix[:len(prefix)-1]),
	}
	for _, plugin := range []string{"google.golang.org/protobuf/cmd/protoc-gen-go", "connectrpc.com/connect/cmd/protoc-gen-connect-go"} {
		if err := generate(ctx, ledger, plugin, req); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// generate runs a plugin and writes the files that it answers.
func generate(ctx context.Context, ledger, plugin string, req *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return fmt.Errorf("it says: %s", resp.GetError())
	}
	for _, f := range resp.GetFile() {
		path := filepath.Join(ledger, f.GetName())
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
