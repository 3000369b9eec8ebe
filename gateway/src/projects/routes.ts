/** The routes of projects. The body of a deploy request is read after its signature was verified, and parsed in a worker. */
import { Readable } from 'node:stream'
import { clientNetwork } from '@warren/kit/client-network'
import { encodeLine } from '@warren/protocol'
import { Type } from 'typebox'
import { ChainEntry } from '../chains/entry.ts'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { listLog } from '../logs/list.ts'
import { BodyReceiver } from '../uploads/receive-body.ts'
import { deleteProject } from './delete.ts'
import { deploy } from './deploy.ts'
import { listProjects } from './list.ts'
import { getDeploymentStatus } from './status.ts'

const Accepted = Type.Object({
  projectId: Type.String(),
  deploymentId: Type.String(),
  status: Type.Literal('deploying'),
  message: Type.String(),
})

const PaymentRequired = Type.Object({
  error: Type.String(),
  amount_usd: Type.Number({ description: 'What is still missing, in dollars' }),
  amount_token: Type.String({ description: 'The same in the smallest unit of the token' }),
  current_credit_balance_usd: Type.Number(),
  active_projects: Type.Integer({ description: 'Other projects that use the credit of the wallet' }),
  pay_to: Type.String(),
  payment_chain: Type.String(),
  token: Type.String(),
  decimals: Type.Integer(),
  supported_chains: Type.Array(ChainEntry),
  reason: Type.Optional(Type.String({ description: 'Why a payment was refused' })),
  warning: Type.Optional(Type.String()),
})

const Project = Type.Object({
  id: Type.String(),
  name: Type.String(),
  displayName: Type.String(),
  status: Type.String(),
  url: Type.Union([Type.String(), Type.Null()]),
  createdAt: Type.String({ format: 'date-time' }),
})

const Status = Type.Object({
  status: Type.String({ description: '`deploying`, `ready` or `failed`' }),
  deployment_id: Type.String(),
  deployment_status: Type.Optional(Type.String()),
  endpoint: Type.Optional(Type.String()),
  reason: Type.Optional(Type.String()),
  message: Type.Optional(Type.String()),
})

const LogLine = Type.Object({
  seq: Type.Integer({ minimum: 1 }),
  at: Type.String({ format: 'date-time' }),
  source: Type.String({ description: '`gateway`, `build` or `app`' }),
  stream: Type.String({ description: '`stdout` or `stderr`' }),
  text: Type.String({ description: 'Values of environment variables are replaced by `***`' }),
})

async function* encodeLines(lines: AsyncIterable<unknown>): AsyncGenerator<string> {
  for await (const line of lines) yield encodeLine(line)
}

export function projectRoutes(app: App, deps: Deps): void {
  const config = { signature: 'required' } as const
  app.get(
    '/agent/projects',
    {
      config,
      schema: {
        summary: 'Projects of the wallet, newest first',
        tags: ['projects'],
        response: {
          200: Type.Object({ wallet: Type.String(), count: Type.Integer(), projects: Type.Array(Project) }),
        },
      },
    },
    async ({ headers }) => listProjects(deps, headers['x-wallet-address'] as string),
  )
  app.get(
    '/agent/deploy/:projectId/:deploymentId/status',
    {
      config,
      schema: {
        summary: 'How far a deployment is',
        tags: ['projects'],
        params: Type.Object({ projectId: Type.String(), deploymentId: Type.String() }),
        response: { 200: Status },
      },
    },
    async ({ wallet, params }) => getDeploymentStatus(deps, wallet, params.projectId, params.deploymentId),
  )
  app.get(
    '/agent/deploy/:projectId/:deploymentId/logs',
    {
      config,
      schema: {
        summary: 'Log of a deployment: its build, and its app',
        tags: ['projects'],
        params: Type.Object({ projectId: Type.String(), deploymentId: Type.String() }),
        querystring: Type.Object({
          after: Type.Optional(
            Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Only lines after this `seq`' }),
          ),
        }),
        response: {
          200: {
            description: 'One JSON object per line, oldest first',
            content: { 'application/x-ndjson': { schema: LogLine } },
          },
        },
      },
    },
    async ({ wallet, params, query }, reply) => {
      const lines = await listLog(deps, wallet, params, query.after ?? 0)
      // The schema describes one line; the stream is sent as it is.
      return reply.type('application/x-ndjson').send(Readable.from(encodeLines(lines)) as never)
    },
  )
  app.delete(
    '/agent/projects/:projectId',
    {
      config,
      schema: {
        summary: 'Delete a project for good',
        tags: ['projects'],
        params: Type.Object({ projectId: Type.String() }),
        response: { 200: Type.Object({ projectId: Type.String(), status: Type.Literal('deleted') }) },
      },
    },
    async ({ wallet, params }) => deleteProject(deps, wallet, params.projectId),
  )
  // In a separate scope, because its body reaches the handler unread.
  app.register(async (scope) => deployRoute(scope as unknown as App, deps))
}

function deployRoute(app: App, deps: Deps): void {
  const receiver = new BodyReceiver(deps.config)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
  app.addHook('onRequest', (request, _reply, done) => {
    // Bodies are JSON whatever the header says; Fastify refuses a malformed one before any parser.
    delete request.raw.headers['content-type']
    done()
  })
  app.post(
    '/agent/deploy',
    {
      config: { signature: 'required' },
      // The receiver counts the bytes. Fastify's limit would refuse by the stated length only.
      bodyLimit: Number.MAX_SAFE_INTEGER,
      schema: {
        summary: 'Deploy a project',
        tags: ['projects'],
        response: { 200: Accepted, 402: { description: 'A payment is missing or was refused', ...PaymentRequired } },
      },
    },
    async (request, reply) => {
      const { accepted, headers } = await receiver.receive(clientNetwork(request.ip), request.raw, (body) =>
        deploy(deps, request.wallet, request.raw.headers, body),
      )
      reply.headers(headers)
      return accepted
    },
  )
}
