import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { newId } from './ids.ts'
import {
  checkDockerfileSize,
  DOCKERFILE_MAX_BYTES,
  TEMPLATE_MOVES,
  TEMPLATE_STATUSES,
  TemplateCreateBody,
  TemplateLogFrame,
  TemplateView,
} from './template.ts'

test('every status except pending, the initial one, is reached by a transition', () => {
  const reachable = new Set<string>(Object.values(TEMPLATE_MOVES).map((move) => move.to))

  assert.deepEqual(
    TEMPLATE_STATUSES.filter((status) => !reachable.has(status)),
    ['pending'],
  )
})

test('a template needs a name and a Dockerfile, and its base is optional', () => {
  const body = { name: 'my-image', dockerfile: 'FROM debian:13' }

  assert.ok(Value.Check(TemplateCreateBody, body))
  assert.ok(Value.Check(TemplateCreateBody, { ...body, base: 'devbox:1' }))
  assert.ok(!Value.Check(TemplateCreateBody, { ...body, dockerfile: '' }))
  for (const name of ['', 'My', 'a_b', 'a'.repeat(64)]) assert.ok(!Value.Check(TemplateCreateBody, { ...body, name }))
})

test('the size of a Dockerfile is measured in bytes', () => {
  assert.equal(checkDockerfileSize('#'.repeat(DOCKERFILE_MAX_BYTES)), undefined)
  assert.match(checkDockerfileSize('é'.repeat(DOCKERFILE_MAX_BYTES / 2 + 1)) ?? '', /65536 bytes/)
})

test('built_at of an unfinished template is null, not absent', () => {
  const view = {
    id: newId('template'),
    name: 'my-image',
    base: 'debian:13',
    status: 'pending',
    ext4_size_bytes: 0,
    created_at: '2026-01-02T03:04:05.006Z',
  }

  assert.ok(Value.Check(TemplateView, { ...view, built_at: null }))
  assert.ok(!Value.Check(TemplateView, view))
})

test('a log consists of lines, and a followed one ends with the status', () => {
  const line = { stream: 'done\n', line: 'done', ts: '2026-01-02T03:04:05.006Z', attempt: 1, number: 1 }

  assert.ok(Value.Check(TemplateLogFrame, line))
  assert.ok(Value.Check(TemplateLogFrame, { final: true, status: 'ready' }))
  assert.ok(!Value.Check(TemplateLogFrame, { final: true, status: 'building' }))
  assert.ok(!Value.Check(TemplateLogFrame, { stream: 'done\n' }))
})
