// Records what BuildKit makes of Dockerfiles, for dockerfile/src/buildkit.test.ts. Run it by hand, with Go and network
// access, to compare with a newer BuildKit (its version is in go.mod):
//
//	go mod tidy && go run . < recorded.jsonl > new.jsonl
//
// Each line of the input is an object with a `dockerfile`; the output has the same lines with the results added. The base
// is always scratch, so nothing is downloaded, and nothing is executed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/solver/pb"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

type record struct {
	Dockerfile string      `json:"dockerfile"`
	Error      string      `json:"error,omitempty"`
	Steps      []step      `json:"steps,omitempty"`
	Image      interface{} `json:"image,omitempty"`
}

// A step has argv, or the folder or file that it creates, or the path that it copies to.
type step struct {
	Argv    []string `json:"argv,omitempty"`
	Env     []string `json:"env,omitempty"`
	Cwd     string   `json:"cwd,omitempty"`
	User    string   `json:"user,omitempty"`
	Folder  string   `json:"folder,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	File    string   `json:"file,omitempty"`
	Content string   `json:"content,omitempty"`
	CopyTo  string   `json:"copyTo,omitempty"`
}

func main() {
	input := json.NewDecoder(bufio.NewReader(os.Stdin))
	output := json.NewEncoder(os.Stdout)
	output.SetEscapeHTML(false)
	for {
		var one record
		if err := input.Decode(&one); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		if err := output.Encode(evaluate(one.Dockerfile)); err != nil {
			panic(err)
		}
	}
}

func evaluate(dockerfile string) record {
	result := record{Dockerfile: dockerfile}
	platform := &ocispecs.Platform{OS: "linux", Architecture: "amd64"}
	ctx := context.Background()
	converted, err := dockerfile2llb.Dockerfile2LLB(ctx, []byte(dockerfile), dockerfile2llb.ConvertOpt{TargetPlatform: platform})
	if err != nil {
		result.Error = err.Error()
		return result
	}
	definition, err := converted.State.Marshal(ctx, llb.LinuxAmd64)
	if err != nil {
		result.Error = err.Error()
		return result
	}
	result.Image = converted.Image.Config
	for _, bytes := range definition.Def {
		var op pb.Op
		if err := op.UnmarshalVT(bytes); err != nil {
			panic(err)
		}
		if exec := op.GetExec(); exec != nil {
			result.Steps = append(result.Steps, step{Argv: exec.Meta.Args, Env: exec.Meta.Env, Cwd: exec.Meta.Cwd, User: exec.Meta.User})
		}
		for _, action := range op.GetFile().GetActions() {
			if folder := action.GetMkdir(); folder != nil {
				result.Steps = append(result.Steps, step{Folder: folder.Path, Owner: owner(folder.Owner)})
			}
			if file := action.GetMkfile(); file != nil {
				result.Steps = append(result.Steps, step{File: file.Path, Content: string(file.Data)})
			}
			if copying := action.GetCopy(); copying != nil {
				result.Steps = append(result.Steps, step{CopyTo: copying.Dest, Owner: owner(copying.Owner)})
			}
		}
	}
	return result
}

func owner(chown *pb.ChownOpt) string {
	if chown == nil {
		return ""
	}
	if chown.Group == nil {
		return name(chown.User)
	}
	return name(chown.User) + ":" + name(chown.Group)
}

func name(user *pb.UserOpt) string {
	if byName := user.GetByName(); byName != nil {
		return byName.Name
	}
	return fmt.Sprint(user.GetByID())
}
