// go-policies answers what Kubernetes' own admission code decides, one JSON line in, one JSON line out.
//
// A line holds a `policy` (ValidatingAdmissionPolicy), or `matchConditions` of a webhook, and `requests`: objects with
// the `operation`, the `resource` and, where there is one, the object before; and who asks, unless it does not matter.
// The answer holds for each request the messages of what was refused (`decisions`; none when it was admitted), or
// whether a webhook is called (`called`).
// Compiled and evaluated as in an API server of v1.37, with its limit on what an expression may cost.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/resource/v1"
	"k8s.io/api/resource/v1beta1"
	"k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

var types = runtime.NewScheme()

func init() {
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, v1beta1.AddToScheme, v1beta2.AddToScheme} {
		if err := add(types); err != nil {
			panic(err)
		}
	}
}

type request struct {
	Operation string                 `json:"operation"`
	Resource  string                 `json:"resource"`
	Object    map[string]interface{} `json:"object"`
	OldObject map[string]interface{} `json:"oldObject"`
	User      string                 `json:"user"`
	Groups    []string               `json:"groups"`
}

type input struct {
	Policy          *admissionregistration.ValidatingAdmissionPolicy `json:"policy"`
	MatchConditions []admissionregistration.MatchCondition           `json:"matchConditions"`
	Requests        []request                                        `json:"requests"`
}

type output struct {
	Decisions [][]string `json:"decisions,omitempty"`
	Called    []bool     `json:"called,omitempty"`
	Error     string     `json:"error,omitempty"`
}

func main() {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, 64<<20)
	encoder := json.NewEncoder(os.Stdout)
	for scanner.Scan() {
		var asked input
		answer := output{}
		if err := json.Unmarshal(scanner.Bytes(), &asked); err != nil {
			answer.Error = err.Error()
		} else if err := decide(asked, &answer); err != nil {
			answer = output{Error: err.Error()}
		}
		if err := encoder.Encode(answer); err != nil {
			panic(err)
		}
	}
}

func decide(asked input, answer *output) error {
	if asked.Policy == nil {
		matcher, err := conditions(asked.MatchConditions)
		if err != nil {
			return err
		}
		for _, one := range asked.Requests {
			result := matcher.Match(context.Background(), one.attributes(), nil, nil)
			if result.Error != nil {
				return result.Error
			}
			answer.Called = append(answer.Called, result.Matches)
		}
		return nil
	}
	validator, err := compiled(asked.Policy)
	if err != nil {
		return err
	}
	for _, one := range asked.Requests {
		attributes := one.attributes()
		result := validator.Validate(context.Background(), attributes.GetResource(), attributes, nil, nil,
			apiservercel.RuntimeCELCostBudget, nil)
		refused := []string{}
		for _, decision := range result.Decisions {
			if decision.Action == validating.ActionDeny {
				refused = append(refused, fmt.Sprintf("%s: %s", decision.Evaluation, decision.Message))
			}
		}
		answer.Decisions = append(answer.Decisions, refused)
	}
	return nil
}

// attributes describes a request as the API server does.
func (r request) attributes() *admission.VersionedAttributes {
	object := typed(r.Object)
	kind := object.GetObjectKind().GroupVersionKind()
	resource := kind.GroupVersion().WithResource(r.Resource)
	name := r.User
	if name == "" {
		name = "jane"
	}
	record := admission.NewAttributesRecord(object, typed(r.OldObject), kind, "team", "name",
		schema.GroupVersionResource(resource), "", admission.Operation(r.Operation), nil, false,
		&user.DefaultInfo{Name: name, Groups: r.Groups})
	attributes := &admission.VersionedAttributes{Attributes: record, VersionedKind: kind}
	attributes.VersionedObject.Set(object)
	if r.OldObject != nil {
		attributes.VersionedOldObject.Set(typed(r.OldObject))
	}
	return attributes
}

// typed returns an object as the type that the API server has for it, or as it is where the server has none.
func typed(object map[string]interface{}) runtime.Object {
	if object == nil {
		return nil
	}
	loose := &unstructured.Unstructured{Object: object}
	known, err := types.New(loose.GroupVersionKind())
	if err != nil {
		return loose
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, known); err != nil {
		return loose
	}
	known.GetObjectKind().SetGroupVersionKind(loose.GroupVersionKind())
	return known
}

// compiled does what compilePolicy of the admission plugin does, which is not exported.
func compiled(policy *admissionregistration.ValidatingAdmissionPolicy) (validating.Validator, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	optional := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	variables := []cel.NamedExpressionAccessor{}
	for _, one := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: one.Name, Expression: one.Expression})
	}
	compiler.CompileAndStoreVariables(variables, optional, environment.StoredExpressions)
	var matcher matchconditions.Matcher
	if len(policy.Spec.MatchConditions) > 0 {
		matcher = matchconditions.NewMatcher(
			compiler.CompileCondition(accessors(policy.Spec.MatchConditions), optional, environment.StoredExpressions),
			policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	}
	rules, messages := []cel.ExpressionAccessor{}, []cel.ExpressionAccessor{}
	for _, one := range policy.Spec.Validations {
		rules = append(rules, &validating.ValidationCondition{
			Expression: one.Expression, Message: one.Message, Reason: one.Reason})
		var message cel.ExpressionAccessor
		if one.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: one.MessageExpression}
		}
		messages = append(messages, message)
	}
	validator := validating.NewValidator(
		compiler.CompileCondition(rules, optional, environment.StoredExpressions), matcher,
		compiler.CompileCondition(nil, optional, environment.StoredExpressions),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, environment.StoredExpressions),
		policy.Spec.FailurePolicy, nil)
	return validator, validator.CompileError()
}

func accessors(found []admissionregistration.MatchCondition) []cel.ExpressionAccessor {
	expressions := make([]cel.ExpressionAccessor, len(found))
	for index := range found {
		expressions[index] = (*matchconditions.MatchCondition)(&found[index])
	}
	return expressions
}

// conditions compiles the match conditions of a webhook.
func conditions(found []admissionregistration.MatchCondition) (matchconditions.Matcher, error) {
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	fail := admissionregistration.Fail
	evaluator := compiler.CompileCondition(accessors(found),
		cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.StoredExpressions)
	if err := errors.Join(evaluator.CompilationErrors()...); err != nil {
		return nil, err
	}
	return matchconditions.NewMatcher(evaluator, &fail, "webhook", "validating", "webhook"), nil
}
