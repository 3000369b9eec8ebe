/**
 * Completes the OpenAPI document with what the routes' schemas do not contain: an example of each request body, samples
 * of code (`x-codeSamples`), the body of an upload, which is not JSON and therefore has no schema, and the tags in the
 * order in which a reader needs them. The first sentence of a summary is the title of an operation.
 */
import { type CodeSample, renderCodeSamples, type SampleOperation } from './code-samples.ts'
import { EXAMPLE_BODIES } from './example-bodies.ts'

type Content = Record<string, { schema?: object; example?: unknown }>
export type Operation = {
  summary?: string
  description?: string
  security?: object[]
  parameters?: { name: string; in: string; required?: boolean }[]
  requestBody?: { required?: boolean; content: Content }
  responses: Record<string, { description?: string; content?: Content }>
  'x-codeSamples'?: CodeSample[]
}
type Tag = { name: string; description: string }
export type OpenApiDocument = { paths: Record<string, Record<string, Operation>>; tags?: Tag[] }

const TAGS: Tag[] = [
  { name: 'sandboxes', description: 'Create, list, pause, resume, fork and destroy sandboxes.' },
  { name: 'guest', description: 'Run commands, transfer files and add SSH keys inside a sandbox.' },
  {
    name: 'processes',
    description: 'Processes that continue without a connection, with output that can be read again.',
  },
  { name: 'shell and tunnels', description: 'Login shells, and connections to TCP ports inside a sandbox.' },
  { name: 'access tokens', description: 'Credentials that open one sandbox only.' },
  { name: 'network', description: 'Egress rules, private networks and bandwidth.' },
  { name: 'disk', description: 'Buckets of S3 stores, mounted in sandboxes without giving them a key.' },
  { name: 'template', description: 'Root file systems that you build from Dockerfiles.' },
  { name: 'catalog', description: 'Shapes and root file systems for new sandboxes.' },
  { name: 'webhook', description: 'Endpoints that are notified of events, and their deliveries.' },
  { name: 'metrics', description: 'What sandboxes use, one by one and all of an account.' },
  { name: 'account', description: 'What was changed, and by whom.' },
  { name: 'identity', description: 'The caller.' },
  { name: 'hosts', description: 'Machines that run sandboxes.' },
  { name: 'health', description: 'Probes for load balancers and supervisors.' },
]

/** Changes the document in place. */
export function completeDocument(document: OpenApiDocument): void {
  document.tags = TAGS
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) completeOperation(operation, method.toUpperCase(), path)
  }
}

function completeOperation(operation: Operation, method: string, path: string): void {
  splitSummary(operation)
  for (const response of Object.values(operation.responses)) {
    if (response.description === 'Default Response') response.description = 'Success'
  }
  const kind = kindOf(operation, method, path)
  if (kind === 'upload') {
    operation.requestBody = {
      required: true,
      content: { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } },
    }
  }
  const body = EXAMPLE_BODIES[`${method} ${path}`]
  const json = operation.requestBody?.content['application/json']
  if (body && json) json.example = body
  operation['x-codeSamples'] = renderCodeSamples({
    method,
    path,
    kind,
    isPublic: operation.security?.length === 0,
    query: (operation.parameters ?? []).filter(({ in: place, required }) => place === 'query' && required).map(nameOf),
    ...(body ? { body } : {}),
  })
}

function splitSummary(operation: Operation): void {
  const [, title, rest] = /^(.+?)(?:[.:;] (.+))?$/.exec(operation.summary ?? '') ?? []
  if (title === undefined || rest === undefined) return
  operation.summary = title
  const sentence = `${rest[0]!.toUpperCase()}${rest.slice(1)}.` // Not empty: the pattern has a character there.
  operation.description = [sentence, operation.description].filter((part) => part !== undefined).join('\n\n')
}

const nameOf = ({ name }: { name: string }): string => name

function kindOf({ responses }: Operation, method: string, path: string): SampleOperation['kind'] {
  if (responses['101']) return path.endsWith('-ws') ? 'websocket' : 'upgrade'
  if (method === 'PUT' && path.endsWith('/files')) return 'upload'
  const content = responses['200']?.content ?? {}
  if ('application/octet-stream' in content) return 'download'
  return 'application/x-ndjson' in content ? 'lines' : 'json'
}
