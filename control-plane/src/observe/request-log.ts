/**
 * Logs one line per request that changed something or failed with 5xx. Successful reads are counted but not logged. The
 * line contains the route's pattern and the sandbox's id, never the query, headers or body.
 */
import type { FastifyInstance } from 'fastify'
import type { Deps } from '../deps.ts'
import { callerKey } from '../http/caller.ts'

export function observeRequests(app: FastifyInstance, deps: Deps): void {
  app.addHook('onResponse', (request, reply, done) => {
    done()
    const route = request.routeOptions.url ?? 'none'
    const status = reply.statusCode
    const seconds = reply.elapsedTime / 1000
    deps.metrics.requests.observe({ method: request.method, route, status }, seconds)

    const isRead = request.method === 'GET' || request.method === 'HEAD'
    if (status < 500 && isRead) return
    const line = {
      request: request.id,
      method: request.method,
      route,
      ...(request.sandbox ? { sandbox: request.sandbox.id } : {}),
      ...(request.caller ? { caller: callerKey(request.caller) } : {}),
      status,
      ms: Math.round(reply.elapsedTime * 10) / 10,
    }
    // The gateway asks apps that are starting until they answer, and passes on requests to those that do not.
    const isProbe = status === 502 && route.endsWith('/tunnel/:port') && request.caller?.user.plan === 'internal'
    if (status >= 500 && !isProbe) deps.log.warn(line, 'request failed')
    else deps.log.info(line, 'request')
  })
}
