package main

import (
	"fmt"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

// compiled counts a policy's expressions and says which do not compile, in the environment that new ones are held to.
func compiled(policy *admissionregistration.ValidatingAdmissionPolicy) (int, []string) {
	spec, count, problems := policy.Spec, 0, []string{}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return 0, []string{err.Error()}
	}
	take := func(place string, index int, result cel.CompilationResult) {
		count++
		if result.Error != nil {
			problems = append(problems, fmt.Sprintf("%s, spec.%s[%d]: %s", policy.Name, place, index, result.Error))
		}
	}
	all := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	texts := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil}
	compile := func(accessor cel.ExpressionAccessor, options cel.OptionalVariableDeclarations) cel.CompilationResult {
		return compiler.CompileCELExpression(accessor, options, environment.NewExpressions)
	}
	for i := range spec.MatchConditions { // before the variables, which they may not name
		take("matchConditions", i, compile((*matchconditions.MatchCondition)(&spec.MatchConditions[i]), all))
	}
	for i, each := range spec.Variables {
		variable := &validating.Variable{Name: each.Name, Expression: each.Expression}
		take("variables", i, compiler.CompileAndStoreVariable(variable, all, environment.NewExpressions))
	}
	for i, each := range spec.Validations {
		condition := &validating.ValidationCondition{Expression: each.Expression}
		take("validations", i, compile(condition, all))
		if each.MessageExpression != "" {
			message := &validating.MessageExpressionCondition{MessageExpression: each.MessageExpression}
			take("messageExpressions", i, compile(message, texts))
		}
	}
	for i, each := range spec.AuditAnnotations {
		annotation := &validating.AuditAnnotationCondition{Key: each.Key, ValueExpression: each.ValueExpression}
		take("auditAnnotations", i, compile(annotation, all))
	}
	return count, problems
}
