package main

import (
	"context"
	"encoding/json"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Resource is an object of a custom kind with the kind's OpenAPI schema.
type Resource struct {
	Schema json.RawMessage `json:"schema"`
	Object json.RawMessage `json:"object"`
}

// answerResource says which rules of the schema (x-kubernetes-validations) the object breaks.
func answerResource(ctx context.Context, resource Resource) ([]string, error) {
	var published apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(resource.Schema, &published); err != nil {
		return nil, err
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&published, &internal, nil); err != nil {
		return nil, err
	}
	schema, err := structural.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(resource.Object, &object); err != nil { // whole numbers stay whole
		return nil, err
	}
	problems := []string{}
	validator := cel.NewValidator(schema, true, celconfig.PerCallLimit)
	if validator == nil {
		return problems, nil
	}
	errors, _ := validator.Validate(ctx, nil, schema, object, nil, celconfig.RuntimeCELCostBudget)
	for _, each := range errors {
		problems = append(problems, each.Error())
	}
	return problems, nil
}
