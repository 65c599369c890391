package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	kubernetes "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/warning"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

// PolicySet is what lies in a cluster (policies, bindings, parameters, namespaces), and requests to it.
type PolicySet struct {
	Objects  []json.RawMessage `json:"objects"`
	Requests []Request         `json:"requests"`
}

// Request is a write as admission sees it.
type Request struct {
	Operation string          `json:"operation"`
	User      string          `json:"user"`
	Group     string          `json:"group"`
	Version   string          `json:"version"`
	Resource  string          `json:"resource"`
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object"`
	OldObject json.RawMessage `json:"oldObject"`
}

// PolicyAnswer has what does not compile, `policy, place: why`, and for each request who denies it.
type PolicyAnswer struct {
	Expressions int        `json:"expressions"`
	Uncompiled  []string   `json:"uncompiled"`
	Decisions   []Decision `json:"decisions"`
}

// Decision is the API server's message to the client, empty where the request is admitted, and each denial.
type Decision struct {
	Message string   `json:"message"`
	Denials []Denial `json:"denials"`
}

// Denial is one validation's, or a policy's that could not be decided.
type Denial struct {
	Policy  string `json:"policy"`
	Message string `json:"message"`
}

func answerPolicies(ctx context.Context, set PolicySet) (*PolicyAnswer, error) {
	answer := &PolicyAnswer{Uncompiled: []string{}, Decisions: []Decision{}}
	var objects []runtime.Object
	for _, raw := range set.Objects {
		object, err := decoded(raw)
		if err != nil {
			return nil, err
		}
		if object == nil {
			continue
		}
		switch object := object.(type) {
		case *admissionregistration.ValidatingAdmissionPolicy:
			object.Spec.MatchConstraints = defaulted(object.Spec.MatchConstraints)
			count, problems := compiled(object)
			answer.Expressions += count
			answer.Uncompiled = append(answer.Uncompiled, problems...)
		case *admissionregistration.ValidatingAdmissionPolicyBinding:
			// The server tells the client of the first denial alone; as warnings it tells of all.
			object.Spec.MatchResources = defaulted(object.Spec.MatchResources)
			object.Spec.ValidationActions = append(object.Spec.ValidationActions, admissionregistration.Warn)
		}
		objects = append(objects, object)
	}
	plugin, stop, err := running(objects)
	if err != nil {
		return nil, err
	}
	defer stop()
	for _, request := range set.Requests {
		decision, err := decide(ctx, plugin, request)
		if err != nil {
			return nil, err
		}
		answer.Decisions = append(answer.Decisions, *decision)
	}
	return answer, nil
}

// defaulted is what a server stores: it fills in what a selector leaves out, before anything reads it.
func defaulted(match *admissionregistration.MatchResources) *admissionregistration.MatchResources {
	if match == nil {
		match = &admissionregistration.MatchResources{}
	}
	equivalent := admissionregistration.Equivalent
	match.MatchPolicy = cmp.Or(match.MatchPolicy, &equivalent)
	match.NamespaceSelector = cmp.Or(match.NamespaceSelector, &metav1.LabelSelector{})
	match.ObjectSelector = cmp.Or(match.ObjectSelector, &metav1.LabelSelector{})
	return match
}

// running is the plugin over these objects, ready; `stop` ends what it started.
func running(objects []runtime.Object) (*validating.Plugin, func(), error) {
	plugin, err := validating.NewPlugin(nil)
	if err != nil {
		return nil, nil, err
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(core.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	done := make(chan struct{})
	stop := sync.OnceFunc(func() { close(done) })
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetRESTMapper(mapper)
	plugin.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(scheme.Scheme))
	plugin.SetDrainedNotification(done)
	plugin.SetAuthorizer(authorizerfactory.NewAlwaysDenyAuthorizer())
	factory.Core().V1().ConfigMaps().Informer() // the parameters' one has to be there before the factory starts
	if err := plugin.ValidateInitialization(); err != nil {
		stop()
		return nil, nil, err
	}
	factory.Start(done)
	factory.WaitForCacheSync(done)
	if !plugin.WaitForReady() {
		stop()
		return nil, nil, errors.New("the policies were not read in time")
	}
	return plugin, stop, nil
}

type denials struct{ texts []string }

func (d *denials) AddWarning(_, text string) { d.texts = append(d.texts, text) }

func decide(ctx context.Context, plugin *validating.Plugin, request Request) (*Decision, error) {
	object, err := decoded(request.Object)
	if err != nil {
		return nil, err
	}
	old, err := decoded(request.OldObject)
	if err != nil {
		return nil, err
	}
	options := map[string]runtime.Object{
		"CREATE": &metav1.CreateOptions{}, "UPDATE": &metav1.UpdateOptions{}, "DELETE": &metav1.DeleteOptions{},
	}[request.Operation]
	attributes := admission.NewAttributesRecord(
		object, old,
		schema.GroupVersionKind{Group: request.Group, Version: request.Version, Kind: request.Kind},
		request.Namespace, request.Name,
		schema.GroupVersionResource{Group: request.Group, Version: request.Version, Resource: request.Resource},
		"", admission.Operation(request.Operation), options, false, &user.DefaultInfo{Name: request.User},
	)
	var recorded denials
	ctx, cancel := context.WithTimeout(warning.WithWarningRecorder(ctx, &recorded), time.Minute)
	defer cancel()
	decision := &Decision{Denials: []Denial{}}
	if err := plugin.Validate(ctx, attributes, admission.NewObjectInterfacesFromScheme(scheme.Scheme)); err != nil {
		decision.Message = err.Error()
		if len(recorded.texts) == 0 { // a policy that could not be asked is no validation, and gives no warning
			status, isStatus := err.(kubernetes.APIStatus)
			if !isStatus || len(status.Status().Details.Causes) == 0 {
				return nil, err
			}
			recorded.texts = []string{status.Status().Details.Causes[0].Message}
		}
	}
	for _, text := range recorded.texts {
		head, message, _ := strings.Cut(text, ": ")
		quoted := strings.Split(head, "'")
		if len(quoted) < 3 {
			return nil, fmt.Errorf("no denial: %s", text)
		}
		decision.Denials = append(decision.Denials, Denial{Policy: quoted[1], Message: message})
	}
	slices.SortStableFunc(decision.Denials, func(a, b Denial) int { return strings.Compare(a.Policy, b.Policy) })
	return decision, nil
}

// decoded is the object in Kubernetes' own type where it is a kind of its own, as in an API server: fields that its type
// leaves out when empty are then not there for an expression. nil for nothing.
func decoded(raw json.RawMessage) (runtime.Object, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err == nil {
		return object, nil
	}
	if !runtime.IsNotRegisteredError(err) {
		return nil, err
	}
	custom := &unstructured.Unstructured{}
	if err := custom.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	return custom, nil
}
