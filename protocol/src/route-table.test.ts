import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createRouteMatcher } from './route-table.ts'

const match = createRouteMatcher({
  list: { method: 'GET', path: '/things' },
  create: { method: 'POST', path: '/things' },
  get: { method: 'GET', path: '/things/:id' },
  newest: { method: 'GET', path: '/things/newest' },
  part: { method: 'GET', path: '/things/:id/parts/:part' },
  relay: { method: '*', path: '/things/:id/relay/*' },
})

test('a route matches by method and whole path', () => {
  assert.deepEqual(match('GET', '/things'), { name: 'list', params: {} })
  assert.deepEqual(match('POST', '/things'), { name: 'create', params: {} })
  assert.deepEqual(match('GET', '/things/a-1'), { name: 'get', params: { id: 'a-1' } })
  assert.deepEqual(match('GET', '/things/a/parts/b'), { name: 'part', params: { id: 'a', part: 'b' } })
})

test('a literal segment takes precedence over a parameter', () => {
  assert.deepEqual(match('GET', '/things/newest'), { name: 'newest', params: {} })
})

test('a wildcard matches every method and one or more segments', () => {
  assert.deepEqual(match('PUT', '/things/a/relay/x'), { name: 'relay', params: { id: 'a', '*': 'x' } })
  assert.deepEqual(match('GET', '/things/a/relay/x/y'), { name: 'relay', params: { id: 'a', '*': 'x/y' } })
  assert.equal(match('GET', '/things/a/relay'), undefined)
})

test('other paths and methods match nothing', () => {
  for (const path of ['', '/', '/thing', '/things/', '//things', '/things/a/parts', '/things/a/parts/b/c']) {
    assert.equal(match('GET', path), undefined, path)
  }
  assert.equal(match('DELETE', '/things'), undefined)
})

test('a parameter never holds characters that would need decoding', () => {
  for (const id of ['', '.', '..', 'a.b', 'a%2fb', 'a b', 'ä', 'a?b']) {
    assert.equal(match('GET', `/things/${id}`), undefined, id)
    assert.equal(match('GET', `/things/a/relay/x/${id}`), undefined, id)
  }
})

test('two names for one parameter are an error in the table', () => {
  const routes = { one: { method: 'GET', path: '/:a' }, two: { method: 'POST', path: '/:b' } }

  assert.throws(() => createRouteMatcher(routes), /:a and :b/)
})
