// Which number each field has in protobuf, read from the tags of the API server's own Go types. Run like structs.go.
// A struct that JSON shows inline is a message of its own in protobuf: its fields are listed below its number.
package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type named interface{ OpenAPIModelName() string }

var (
	modelType = reflect.TypeOf((*named)(nil)).Elem()
	found     = map[string]map[string]any{}
	seen      = map[reflect.Type]bool{}
)

func numbers(t reflect.Type) map[string]any {
	out := map[string]any{}
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			continue
		}
		if _, err := strconv.Atoi(tag[1]); err != nil {
			continue
		}
		name := strings.Split(f.Tag.Get("json"), ",")[0]
		if name == "" && f.Anonymous {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			out[tag[1]] = numbers(ft)
			continue
		}
		if name != "" && name != "-" {
			out[tag[1]] = name
			visit(f.Type)
		}
	}
	return out
}

func visit(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		visit(t.Elem())
		return
	case reflect.Struct:
	default:
		return
	}
	if seen[t] {
		return
	}
	seen[t] = true
	fields := numbers(t)
	if t.Implements(modelType) && len(fields) > 0 {
		found[reflect.Zero(t).Interface().(named).OpenAPIModelName()] = fields
	}
}

func main() {
	for _, t := range scheme.Scheme.AllKnownTypes() {
		visit(t)
	}
	for _, v := range []any{
		apiextensions.CustomResourceDefinition{}, apiregistration.APIService{}, metav1.DeleteOptions{},
	} {
		visit(reflect.TypeOf(v))
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		panic(err)
	}
}
