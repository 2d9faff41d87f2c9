package controlplane

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfigName is the name of the only cluster, user and context in a
// kubeconfig file here.
const kubeconfigName = "test"

// newKubeconfig returns a self-contained kubeconfig for the API server at url. All certificates and keys are PEM.
func newKubeconfig(url string, authority, certificate, key []byte) *api.Config {
	config := api.NewConfig()
	config.Clusters[kubeconfigName] = &api.Cluster{Server: url, CertificateAuthorityData: authority}
	config.AuthInfos[kubeconfigName] = &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[kubeconfigName] = &api.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName}
	config.CurrentContext = kubeconfigName
	return config
}

// writeKubeconfig writes the kubeconfig to path.
func writeKubeconfig(path string, config *api.Config) error {
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
