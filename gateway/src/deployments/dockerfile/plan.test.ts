import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseSettings } from '../../uploads/settings.ts'
import { openProject } from '../detect/project.ts'
import { planDockerfile } from './plan.ts'

const IMAGES = { byRuntime: new Map<string, string>(), standard: 'devbox:1' }

function plan(text: string, given: Record<string, unknown> = {}) {
  const { settings, secrets } = parseSettings(given)
  const content = { paths: new Set(['Dockerfile']), texts: new Map([['Dockerfile', text]]) }
  return planDockerfile(openProject(content, null), settings, secrets.buildVars ?? {}, IMAGES)
}

const textsOf = (text: string): string[] => {
  const { build } = plan(text)
  return build?.kind === 'dockerfile' ? build.steps.map((step) => step.text) : []
}

test('steps, and what the app runs with, follow the file', () => {
  const { run, port, build } = plan(
    'FROM node:22-slim\nWORKDIR /srv\nCOPY . .\nRUN npm ci\nENV MODE=live\nUSER node\nEXPOSE 8080\n' +
      'HEALTHCHECK CMD curl -f http://localhost\nCMD node server.js',
  )

  assert.equal(port, 8080)
  assert.deepEqual(build?.kind === 'dockerfile' && build.steps.map(({ kind }) => kind), ['workdir', 'copy', 'run'])
  assert.ok(run.kind === 'image')
  assert.deepEqual(run.argv, ['/bin/sh', '-c', 'node server.js'])
  assert.deepEqual([run.user, run.workdir, run.env.MODE], ['node', '/srv', 'live'])
  assert.deepEqual(run.healthcheck, ['/bin/sh', '-c', 'curl -f http://localhost'])
})

test('the port of the settings wins over EXPOSE, and 3000 is used without either', () => {
  assert.equal(plan('FROM node\nEXPOSE 80\nCMD x', { port: 4000 }).port, 4000)
  assert.equal(plan('FROM node\nCMD x').port, 3000)
})

test('only the stages that the last one needs are replayed', () => {
  const file =
    'FROM golang:1.25 AS build\nRUN go build\nFROM golang AS lint\nRUN lint\nFROM debian:13\nCOPY --from=build /go/app /app\nCMD /app'

  assert.deepEqual(textsOf(file), ['RUN go build', 'COPY --from=build /go/app /app'])
})

test('a stage can build on another stage, and scratch fits every system', () => {
  assert.deepEqual(textsOf('FROM node AS a\nRUN one\nFROM a\nRUN two\nCMD x'), ['RUN one', 'RUN two'])
  assert.deepEqual(textsOf('FROM golang AS a\nRUN one\nFROM scratch\nCOPY --from=0 /x /x\nCMD ["/x"]').length, 2)
})

test('buildVars are the values of ARGs, also where the file has a default', () => {
  const { build } = plan('FROM node\nARG A=1\nARG B\nRUN x\nCMD x', { buildVars: { A: '7', B: '8' } })

  assert.ok(build?.kind === 'dockerfile')
  assert.equal(build.steps[0]!.env.A, '7')
  assert.equal(build.steps[0]!.env.B, '8')
})

const REFUSED: [what: string, text: string, reason: RegExp][] = [
  [
    'stages on different systems',
    'FROM node AS a\nRUN x\nFROM nginx:alpine\nCMD x',
    /there is no image like nginx:alpine/,
  ],
  [
    'stages of two families',
    'FROM node:22 AS a\nRUN x\nFROM node:22-alpine\nCOPY --from=a /x /x\nCMD x',
    /stages build on different systems \(node:22 and node:22-alpine\)/,
  ],
  ['a copy from an image', 'FROM node\nCOPY --from=nginx /x /x\nCMD x', /line 2: COPY --from=nginx names an image/],
  ['no command', 'FROM node\nRUN x', /no CMD and no ENTRYPOINT/],
  ['a secret mount', 'FROM node\nRUN --mount=type=secret,id=a x\nCMD x', /line 2: RUN --mount=type=secret,id=a/],
  ['a download by ADD', 'FROM node\nADD https://example.com/x /x\nCMD x', /line 2: ADD of a URL/],
  ['a syntax error', 'FROM node\nRUNN x', /Dockerfile: line 2/],
  ['another encoding', Buffer.from('FROM node\nCMD x', 'utf16le').toString(), /NUL characters; save it as UTF-8 text$/],
]

for (const [what, text, reason] of REFUSED) {
  test(`refused with a reason: ${what}`, () => assert.throws(() => plan(text), reason))
}

test('cache mounts are accepted, and images of Docker Hub in any spelling', () => {
  assert.equal(
    textsOf('FROM docker.io/library/python:3.12@sha256:abc\nRUN --mount=type=cache,target=/c x\nCMD x').length,
    1,
  )
})
