import { Type } from 'typebox'
import type { App } from '../http/server.ts'

export function healthRoutes(app: App): void {
  app.get(
    '/health',
    {
      config: { signature: 'none' },
      schema: {
        summary: 'Whether the gateway runs',
        tags: ['health'],
        response: { 200: Type.Object({ status: Type.Literal('ok') }) },
      },
    },
    async () => ({ status: 'ok' as const }),
  )
}
