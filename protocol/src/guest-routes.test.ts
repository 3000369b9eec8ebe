import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findRelayedGuestRoute, GUEST_ROUTES, type GuestRoute } from './guest-routes.ts'

/** Every relayed request with the attributes of its stream. */
const RELAYED: Record<string, (keyof GuestRoute)[]> = {
  'POST /identity': [],
  'POST /exec': ['waitsForBody'],
  'PUT /files': ['slowToAnswer'],
  'GET /files': [],
  'GET /metrics': [],
  'POST /grow': [],
  'POST /sync': [],
  'POST /shell': ['staysOpen'],
  'POST /tunnel': ['staysOpen'],
  'POST /processes': [],
  'GET /processes': [],
  'GET /processes/proc_1': [],
  'DELETE /processes/proc_1': ['slowToAnswer'],
  'GET /processes/proc_1/connect': ['staysOpen'],
  'GET /processes/proc_1/wait': ['slowToAnswer'],
  'POST /processes/proc_1/input': ['slowToAnswer'],
  'POST /processes/proc_1/stdin/close': [],
  'POST /processes/proc_1/resize': [],
  'POST /processes/proc_1/signal': [],
}

const ATTRIBUTES = ['staysOpen', 'slowToAnswer', 'waitsForBody'] as const

for (const [request, expected] of Object.entries(RELAYED)) {
  test(`${request} is relayed: ${expected.join(', ') || 'an ordinary stream'}`, () => {
    const [method = '', path = ''] = request.split(' ')

    const route = findRelayedGuestRoute(method, path)

    assert.deepEqual(
      ATTRIBUTES.filter((attribute) => route?.[attribute]),
      expected,
    )
    assert.ok(route)
  })
}

test('the list above covers every relayed route', () => {
  const relayed = Object.values<GuestRoute>(GUEST_ROUTES).filter((route) => route.relayed)

  const covered = new Set(
    Object.keys(RELAYED).map((request) => findRelayedGuestRoute(...(request.split(' ') as [string, string]))),
  )

  assert.deepEqual(covered, new Set(relayed))
})

test('routes of the host agent alone, unknown routes and other methods are not relayed', () => {
  const requests = ['GET /ready', 'POST /wake', 'POST /clock', 'POST /entropy', 'POST /poweroff', 'GET /signals']
  requests.push('POST /signals/ack', 'POST /processes/proc_1/explode', 'GET /exec', 'POST /exec/more', 'DELETE /files')
  requests.push('GET /processes/../signals', 'GET /toString', 'GET /__proto__')

  for (const request of requests) {
    const [method = '', path = ''] = request.split(' ')
    assert.equal(findRelayedGuestRoute(method, path), undefined, request)
  }
})
