/**
 * The nearest image to what a Dockerfile names. All of ours are Debian, so images that are Debian too behave as expected.
 * Images on Alpine run as well, as long as their steps do not use its package manager.
 */
import { EMPTY_IMAGE, type ImageConfig } from '@warren/dockerfile'

export type Base = {
  /** `scratch` is empty, so it fits every family. */
  family: 'debian' | 'alpine' | 'any'
  /** Of the table of images, such as `node:22`; undefined for a plain system. */
  runtime: string | undefined
  config: ImageConfig
}

/** Official images by name, and the runtime that they have. */
const RUNTIMES: Record<string, string | undefined> = {
  node: 'node',
  python: 'python',
  golang: 'golang',
  rust: 'rust',
  'oven/bun': 'bun',
  debian: undefined,
  ubuntu: undefined,
  alpine: undefined,
  'buildpack-deps': undefined,
  'debian/eol': undefined,
}
/** They contain no shell, and nothing that Debian does not have. */
const DISTROLESS = /^gcr\.io\/distroless\/(?:static|base|base-nossl|cc|nodejs\d*|python3|java\d*)(?:-debian\d+)?$/

/** Undefined for an image that nothing here is like. */
export function findBase(reference: string): Base | undefined {
  const [name, tag] = splitReference(reference)
  if (name === 'scratch') return { family: 'any', runtime: undefined, config: EMPTY_IMAGE }
  if (DISTROLESS.test(name)) return { family: 'debian', runtime: undefined, config: EMPTY_IMAGE }
  if (!Object.hasOwn(RUNTIMES, name)) return undefined
  const family = name === 'alpine' || /(?:^|-)alpine/.test(tag) ? 'alpine' : 'debian'
  const program = RUNTIMES[name]
  const version = /^(\d+(?:\.\d+)?)/.exec(tag)?.[1]
  return {
    family,
    runtime: program === undefined ? undefined : `${program}:${version ?? 'latest'}`,
    config: configOf(name),
  }
}

/** Without the registry of Docker Hub, and without a digest. */
function splitReference(reference: string): [name: string, tag: string] {
  const [plain = ''] = reference.split('@')
  const short = plain
    .replace(/^(?:docker\.io|index\.docker\.io|registry-1\.docker\.io)\//, '')
    .replace(/^library\//, '')
  const colon = short.lastIndexOf(':')
  const hasTag = colon > short.lastIndexOf('/')
  return hasTag ? [short.slice(0, colon), short.slice(colon + 1)] : [short, 'latest']
}

/** What the official images set and Dockerfiles rely on. */
function configOf(name: string): ImageConfig {
  if (name === 'golang') {
    const path = `/go/bin:/usr/local/go/bin:${EMPTY_IMAGE.env.PATH}`
    return { ...EMPTY_IMAGE, env: { PATH: path, GOPATH: '/go' }, workdir: '/go' }
  }
  if (name === 'oven/bun') return { ...EMPTY_IMAGE, workdir: '/home/bun/app' }
  return EMPTY_IMAGE
}
