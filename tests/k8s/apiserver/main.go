// Answers as Kubernetes' own code does, for the tests: reads JSON from the standard input, writes JSON to the standard output.
//
// Owns nothing of the decision: policies go to the API server's admission plugin ValidatingAdmissionPolicy, with its
// matching, parameters, compiler, cost limits and messages; rules of custom resources to its validator of them. Here is
// only what stands around them in a server: objects in place of etcd, and the attributes of a request.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// Question is what is asked: sets of policies with their requests, and custom resources with their schemas.
type Question struct {
	Policies  []PolicySet `json:"policies"`
	Resources []Resource  `json:"resources"`
}

// Answer has one entry for each of the question's, in its order.
type Answer struct {
	Policies  []PolicyAnswer `json:"policies"`
	Resources [][]string     `json:"resources"`
}

func main() {
	var question Question
	if err := json.NewDecoder(os.Stdin).Decode(&question); err != nil {
		fail(err)
	}
	answer := Answer{Policies: []PolicyAnswer{}, Resources: [][]string{}}
	for _, set := range question.Policies {
		result, err := answerPolicies(context.Background(), set)
		if err != nil {
			fail(err)
		}
		answer.Policies = append(answer.Policies, *result)
	}
	for _, resource := range question.Resources {
		problems, err := answerResource(context.Background(), resource)
		if err != nil {
			fail(err)
		}
		answer.Resources = append(answer.Resources, problems)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
