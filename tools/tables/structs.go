// How the API server's own Go types print themselves, read by reflection: which fields are pointers, which are left out
// when empty, what a decoding error calls them. None of this is in OpenAPI, and an object is not stored as a real server
// stores it without it. Run inside the module that builds the API server (see structs.py), so versions cannot differ.
package main

import (
	"encoding"
	"encoding/json"
	"os"
	"reflect"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type named interface{ OpenAPIModelName() string }

// Field is one field as encoding/json sees it.
type Field struct {
	Name      string `json:"name"`
	Go        string `json:"go"`   // what an error message calls the type
	Kind      string `json:"kind"` // of the value, below pointers
	Pointer   bool   `json:"pointer,omitempty"`
	OmitEmpty bool   `json:"omitempty,omitempty"`
	OmitZero  bool   `json:"omitzero,omitempty"`
	Own       bool   `json:"own,omitempty"`    // the type writes its own JSON
	Inline    string `json:"inline,omitempty"` // the embedded struct it comes from
}

// Struct is one definition.
type Struct struct {
	Go     string  `json:"go"`
	Fields []Field `json:"fields"`
}

var (
	modelType     = reflect.TypeOf((*named)(nil)).Elem()
	marshalerType = reflect.TypeOf((*json.Marshaler)(nil)).Elem()
	textType      = reflect.TypeOf((*encoding.TextMarshaler)(nil)).Elem()
	found         = map[string]Struct{}
	seen          = map[reflect.Type]bool{}
)

func marshalsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(marshalerType) || p.Implements(textType)
}

func fields(t reflect.Type) []Field {
	out := []Field{}
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if !f.IsExported() || tag == "-" {
			continue
		}
		parts := strings.Split(tag, ",")
		name, flags := parts[0], strings.Join(parts[1:], ",")
		if f.Anonymous && name == "" {
			visitInline(f.Type, &out)
			continue
		}
		if name == "" {
			name = f.Name
		}
		ft := f.Type
		field := Field{
			Name:      name,
			Go:        ft.String(),
			OmitEmpty: strings.Contains(flags, "omitempty"),
			OmitZero:  strings.Contains(flags, "omitzero"),
		}
		if ft.Kind() == reflect.Pointer {
			field.Pointer = true
			ft = ft.Elem()
			field.Go = ft.String()
		}
		field.Kind = ft.Kind().String()
		field.Own = marshalsItself(ft)
		out = append(out, field)
		visit(ft)
	}
	return out
}

func visitInline(t reflect.Type, out *[]Field) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || marshalsItself(t) {
		return
	}
	for _, f := range fields(t) {
		if f.Inline == "" {
			f.Inline = t.Name()
		} else {
			f.Inline = t.Name() + "." + f.Inline
		}
		*out = append(*out, f)
	}
}

func visit(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		visit(t.Elem())
		return
	case reflect.Map:
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
	if !t.Implements(modelType) || marshalsItself(t) {
		return
	}
	name := reflect.Zero(t).Interface().(named).OpenAPIModelName()
	found[name] = Struct{Go: t.String(), Fields: fields(t)}
}

func main() {
	for _, t := range scheme.Scheme.AllKnownTypes() {
		visit(t)
	}
	for _, v := range []any{
		apiextensions.CustomResourceDefinition{}, apiextensions.CustomResourceDefinitionList{},
		apiregistration.APIService{}, apiregistration.APIServiceList{},
		metav1.Table{}, metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{},
	} {
		visit(reflect.TypeOf(v))
	}
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(found); err != nil {
		panic(err)
	}
}
