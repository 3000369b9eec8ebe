/**
 * A software bill of materials in CycloneDX 1.5 JSON. It has no time and no random number: two machines with the same image and
 * programs print the same text.
 */
import type { Component, InspectedPackage, Inspection } from './inspect.ts'
import type { Distribution } from './packages.ts'

export const renderSbom = ({ name, digest, source, distribution, packages, machine }: Inspection) => ({
  bomFormat: 'CycloneDX',
  specVersion: '1.5',
  version: 1,
  metadata: {
    component: {
      type: 'container',
      'bom-ref': `image:${name}`,
      name,
      version: digest,
      description: source,
      hashes: hashesOf(digest),
    },
  },
  components: [...machine.map(renderComponent), ...packages.map((one) => renderPackage(one, distribution))],
})

const renderComponent = ({ name, version, digest }: Component) => ({
  type: name === 'guest-kernel' ? 'operating-system' : 'application',
  'bom-ref': `machine:${name}`,
  name,
  version,
  ...(digest === undefined ? {} : { hashes: hashesOf(digest) }),
})

function renderPackage(one: InspectedPackage, { id, version: release }: Distribution) {
  const { manager, name, version, architecture, sha256 } = one
  const distro = release === '' ? '' : `&distro=${encodeURIComponent(`${id}-${release}`)}`
  const purl = `pkg:${manager}/${id}/${encodeURIComponent(name)}@${encodeURIComponent(version)}?arch=${architecture}${distro}`
  return { type: 'library', 'bom-ref': purl, name, version, purl, ...(sha256 && { hashes: hashesOf(sha256) }) }
}

const hashesOf = (digest: string) => [{ alg: 'SHA-256', content: digest.replace(/^sha256:/, '') }]
